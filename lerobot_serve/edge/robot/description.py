"""
What the robot is: where its state and frames come from, what it can do, and within what limits.

Plain data without rules: `file` makes it and checks it as a whole. Inside the controller
everything has the robot's own names; what goes over the wire has the policy's, by `rename_map`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import inf


class Motion(Enum):
    """What a number of an action means."""

    POSITION = 'position'
    VELOCITY = 'velocity'


@dataclass(frozen=True, slots=True)
class StateSource:
    """
    One topic that gives values of observation.state.

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


@dataclass(frozen=True, slots=True)
class CameraInput:
    """Where the frames of one camera come from: sensor_msgs/Image or CompressedImage."""

    name: str
    topic: str
    type: str
    max_age_s: float


@dataclass(frozen=True, slots=True)
class ActionLimit:
    """
    One action, the joint it moves, and what it may ask of it.

    The number is in the joint's unit (rad or m; a second less for Motion.VELOCITY), and `max_step`
    bounds its change in one control step. `max_velocity` and `max_acceleration` bound the joint's
    motion whatever the number is. `max_lead` is how far a position may be ahead of the measured
    one.
    """

    name: str
    joint: str
    motion: Motion
    low: float
    high: float
    max_step: float
    max_velocity: float = inf
    max_acceleration: float = inf
    max_lead: float = inf


@dataclass(frozen=True, slots=True)
class Interlock:
    """While a value of the state is below or above a bound, these actions are forced."""

    name: str
    state: str
    below: float | None
    above: float | None
    then: dict[str, float]


@dataclass(frozen=True, slots=True)
class Output:
    """
    Where commands go and as what message: trajectory_msgs/JointTrajectory,
    std_msgs/Float64MultiArray, sensor_msgs/JointState, geometry_msgs/Twist or TwistStamped.

    A `time_from_start_s` of 0 is one control step.
    """

    type: str
    topic: str
    frame_id: str = ''
    time_from_start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Robot:
    """A robot as an edge controller needs it; `safe_pose` is in the order of the actions."""

    name: str
    fps: float
    state: tuple[StateSource, ...]
    cameras: tuple[CameraInput, ...]
    actions: tuple[ActionLimit, ...]
    command: Output
    interlocks: tuple[Interlock, ...] = ()
    safe_pose: tuple[float, ...] | None = None
    rename_map: dict[str, str] = field(default_factory=dict)

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
    def action_joints(self) -> tuple[str, ...]:
        return tuple(action.joint for action in self.actions)

    def _renamed(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.rename_map.get(name, name) for name in names)
