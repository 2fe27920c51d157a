# SPDX-License-Identifier: Apache-2.0
"""
Description of a robot: inputs, actions with limits, and command output.

Plain data; `file` builds it and `checks` validates it. Inside the edge everything has the robot's
names and units; on the wire the policy's, by `rename_map` and `units`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lerobot_serve.cage.description import ActionLimit, Interlock
from lerobot_serve.edge.robot.file_format import InterventionInput
from lerobot_serve.edge.robot.units import UnitConversion, UnitConversions


@dataclass(frozen=True, slots=True)
class StateSource:
    """
    One topic with values of observation.state.

    type    sensor_msgs/JointState, nav_msgs/Odometry or std_msgs/Float64MultiArray
    fields  joint names; linear.x, angular.z, pose.x, pose.y, pose.yaw; or the array's order
    field   of a JointState: position, velocity or effort; otherwise empty
    names   of these values in observation.state
    """

    topic: str
    type: str
    fields: tuple[str, ...]
    field: str
    names: tuple[str, ...]
    max_age_s: float
    # by the stamp of the message; 0: not checked
    max_stamp_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CameraInput:
    """Topic of one camera: sensor_msgs/Image or CompressedImage."""

    name: str
    topic: str
    type: str
    max_age_s: float
    # by the stamp of the message; 0: not checked
    max_stamp_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """
    Topic and message type of commands: trajectory_msgs/JointTrajectory,
    std_msgs/Float64MultiArray, sensor_msgs/JointState, geometry_msgs/Twist or TwistStamped.

    A `time_from_start_s` of 0 is the time to the next command.
    """

    type: str
    topic: str
    frame_id: str = ''
    time_from_start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RobotDescription:
    """
    A robot as an edge controller needs it; `safe_pose` is in the order of the actions, `units` by
    the robot's own names of states and actions.
    """

    name: str
    fps: float
    state: tuple[StateSource, ...]
    cameras: tuple[CameraInput, ...]
    actions: tuple[ActionLimit, ...]
    command: CommandOutput
    interlocks: tuple[Interlock, ...] = ()
    safe_pose: tuple[float, ...] | None = None
    rename_map: dict[str, str] = field(default_factory=dict)
    units: dict[str, UnitConversion] = field(default_factory=dict)
    # the device with which a person takes over; None: none may
    intervention: InterventionInput | None = None

    @property
    def own_state_names(self) -> tuple[str, ...]:
        """The robot's names of what is in observation.state, as interlocks use them."""
        return tuple(name for source in self.state for name in source.names)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The policy's names of what is in observation.state."""
        return self._renamed(self.own_state_names)

    @property
    def action_names(self) -> tuple[str, ...]:
        """The policy's names of the actions."""
        return self._renamed(action.name for action in self.actions)

    @property
    def camera_names(self) -> tuple[str, ...]:
        """The policy's names of the cameras."""
        return self._renamed(camera.name for camera in self.cameras)

    @property
    def state_units(self) -> UnitConversions:
        """The units of the values of observation.state, in order."""
        return UnitConversions(tuple(self.units.get(name) for name in self.own_state_names))

    @property
    def action_units(self) -> UnitConversions:
        """The units of the actions, in order."""
        return UnitConversions(tuple(self.units.get(action.name) for action in self.actions))

    @property
    def action_joints(self) -> tuple[str, ...]:
        return tuple(action.joint for action in self.actions)

    def _renamed(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.rename_map.get(name, name) for name in names)
