# SPDX-License-Identifier: Apache-2.0
"""
Description of a robot: inputs, actions with limits, and command output.

Plain data; `file` builds it and `checks` validates it. Inside the edge everything has the robot's
names and units; on the wire the policy's, by `rename_map` and `units`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import ActionLimit, Interlock, Motion
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


class InputTopic(NamedTuple):
    """Topic, message type and maximum age since arrival of one input."""

    topic: str
    type: str
    max_age_s: float


def state_input_names(robot: RobotDescription) -> tuple[str, ...]:
    """Return the names of the state inputs, in order."""
    return tuple(f'state from {source.topic}' for source in robot.state)


def input_sources(robot: RobotDescription) -> list[tuple[str, StateSource | CameraInput]]:
    """Return name and source of each input; several states of one topic share a name."""
    sources: list[tuple[str, StateSource | CameraInput]] = []
    sources += zip(state_input_names(robot), robot.state, strict=True)
    sources += [(camera.name, camera) for camera in robot.cameras]
    return sources


def input_topics(robot: RobotDescription) -> dict[str, InputTopic]:
    """Return the topic of each input, by name."""
    return {
        name: InputTopic(source.topic, source.type, source.max_age_s)
        for name, source in input_sources(robot)
    }


def input_max_ages_ns(robot: RobotDescription) -> dict[str, int]:
    """Return the maximum age of each input, by name [ns]."""
    return {name: int(one.max_age_s * 1e9) for name, one in input_topics(robot).items()}


POSES = ('pose.x', 'pose.y', 'pose.z', 'pose.yaw')


def measuring_indices(robot: RobotDescription) -> tuple[int | None, ...]:
    """
    Return for each action the index of the state value that measures it.

    It is the value of the same name, otherwise of the same joint, and of the same kind (position
    or velocity). None: no value measures it, or several do.
    """
    return tuple(_measuring(action, robot) for action in robot.actions)


def _measuring(action: ActionLimit, robot: RobotDescription) -> int | None:
    fields = [(source, field) for source in robot.state for field in source.fields]
    fitting = [i for i, (source, field) in enumerate(fields) if _fits(action, source, field)]
    named = [i for i in fitting if robot.own_state_names[i] == action.name]
    jointed = [i for i in fitting if fields[i][1] == action.joint]
    found = named or jointed
    return found[0] if len(found) == 1 else None


def _fits(action: ActionLimit, source: StateSource, field: str) -> bool:
    if source.type == 'nav_msgs/Odometry':
        return (action.motion is Motion.POSITION) == (field in POSES)
    # an array does not declare what its numbers are
    return source.field in ('', action.motion.value)


def measured_values(state: Float64Array, indices: tuple[int | None, ...]) -> Float64Array:
    """
    Return the measured value of each action, in order.

    Unmeasured velocities count as 0.
    """
    return np.array([0.0 if index is None else state[index] for index in indices], np.float64)
