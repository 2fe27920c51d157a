# SPDX-License-Identifier: Apache-2.0
"""
The form of a robot file: what each key may be. `file` makes a description of it. Plain.

The type of a message may be written as package/Message or package/msg/Message.
"""

from __future__ import annotations

from pathlib import Path
import re
from typing import Annotated, Any, Literal

from msgspec import Meta, UNSET, UnsetType

from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES
from lerobot_serve.edge.robot.units import UNIT_NAMES
from lerobot_serve.errors import UserError
from lerobot_serve.files.load import Record, rule
from lerobot_serve.files.parsing import from_yaml, read

TOPIC = re.compile(r'(/|~/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*')
# limits for a URDF, and for a robot file: the longest that comes with the package has 4600 bytes
URDF_BYTES_LIMIT, ROBOT_BYTES_LIMIT = 16 << 20, 64 << 10
# above any value of a real robot
FAR = 1e6
JOINT_STATE, ODOMETRY = 'sensor_msgs/JointState', 'nav_msgs/Odometry'
# without a stamp
VALUES = 'std_msgs/Float64MultiArray'
STATE_TYPES = [JOINT_STATE, ODOMETRY, VALUES]
AXES = ('x', 'y', 'z')
ODOMETRY_FIELDS = [
    *(f'{part}.{axis}' for part in ('linear', 'angular', 'pose') for axis in AXES),
    'pose.yaw',
]
CAMERA_TYPES = ['sensor_msgs/Image', 'sensor_msgs/CompressedImage']
JOY, DEVICE_TYPE = 'sensor_msgs/Joy', JOINT_STATE
# a person commands with what a robot is commanded with, or with a joystick
DEVICE_TYPES = [*COMMAND_TYPES, JOY]


class RobotFileError(UserError, ValueError):
    """Invalid robot file; the text names the place, the given value and what is allowed."""


def full_type(kind: str) -> str:
    """Return the name that ROS has for a type of a robot file: package/msg/Message."""
    return '/msg/'.join(kind.split('/'))


def parse_yaml(data: bytes | str, place: str) -> Any:
    """Return the content of a text in YAML. Raises RobotFileError, which names `place`."""
    try:
        return from_yaml(data)
    except ValueError as error:
        raise RobotFileError(f'{place}: {error}') from None


def parse_received_yaml(text: str, place: str) -> Any:
    """
    Return the content of a text in YAML that others sent: it is small, and has no aliases. Raises
    RobotFileError, which names `place`.
    """
    size = len(text.encode(errors='replace'))
    if size > ROBOT_BYTES_LIMIT:
        raise RobotFileError(f'{place}: {size} bytes, at most {ROBOT_BYTES_LIMIT} are allowed')
    try:
        return from_yaml(text, aliases=False)
    except ValueError as error:
        raise RobotFileError(f'{place}: {error}') from None


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """Return the content of a file. Raises RobotFileError."""
    try:
        return read(path, limit_bytes)
    except ValueError as error:
        raise RobotFileError(f'{path}: {error}') from None


def _is_name(text: str) -> bool:
    return bool(text.strip()) and text.isprintable() and len(text.encode()) <= ID_LIMIT


def _is_topic(text: str) -> bool:
    return _is_name(text) and bool(TOPIC.fullmatch(text)) and '__' not in text


def one_of(*allowed: str) -> Meta:
    """Return the bound of a text that is one of these."""
    return rule(lambda text: text in allowed, f'one of {", ".join(allowed)}')


def are_different(names: list[str]) -> bool:
    return len({*names}) == len(names)


Name = Annotated[str, rule(_is_name, f'a text of at most {ID_LIMIT} bytes')]
Topic = Annotated[
    str, rule(_is_topic, 'the name of a topic like joint_states or /arm/joint_states')
]
Names = Annotated[tuple[Name, ...], rule(are_different, 'a list of different names', min_length=1)]
Age = Annotated[float, Meta(ge=0.001, le=60)]
Value = Annotated[float, Meta(ge=-FAR, le=FAR)]
Rate = Annotated[float, Meta(ge=1e-6, le=FAR)]
Limits = Literal['file', 'urdf']


class JointStates(Record, frozen=True, kw_only=True, tag_field='type', tag=JOINT_STATE):
    """Joints of observation.state; `field` is what of them."""

    topic: Topic
    joints: Names
    field: Literal['position', 'velocity', 'effort'] = 'position'
    names: Names = ()
    max_age_s: Age
    max_stamp_age_s: Age = 0.0


class Odometry(Record, frozen=True, kw_only=True, tag_field='type', tag=ODOMETRY):
    """Velocities and poses of observation.state."""

    topic: Topic
    fields: Annotated[
        tuple[Annotated[str, one_of(*ODOMETRY_FIELDS)], ...],
        rule(are_different, 'a list of different names', min_length=1),
    ]
    names: Names = ()
    max_age_s: Age
    max_stamp_age_s: Age = 0.0


class Values(Record, frozen=True, kw_only=True, tag_field='type', tag=VALUES):
    """Values of observation.state without a stamp, in their order."""

    topic: Topic
    names: Names
    max_age_s: Age


class Camera(Record, frozen=True, kw_only=True):
    """The topic of a camera."""

    topic: Topic
    type: Annotated[str, one_of(*CAMERA_TYPES)] = CAMERA_TYPES[0]
    max_age_s: Age
    max_stamp_age_s: Age = 0.0


class Action(Record, frozen=True, kw_only=True):
    """Limits of any action; with the limits of a URDF, only what is narrower."""

    joint: Name
    limits: Limits | UnsetType = UNSET
    min: Value | UnsetType = UNSET
    max: Value | UnsetType = UNSET
    max_step: float | UnsetType = UNSET


class PositionAction(Action, frozen=True, kw_only=True, tag_field='motion', tag='position'):
    """Limits of a position."""

    max_velocity: Rate | UnsetType = UNSET
    max_acceleration: Rate | UnsetType = UNSET
    max_lead: Rate | UnsetType = UNSET


class VelocityAction(Action, frozen=True, kw_only=True, tag_field='motion', tag='velocity'):
    """Limits of a velocity."""

    max_acceleration: Rate | UnsetType = UNSET


class Command(Record, frozen=True, kw_only=True):
    """The topic and type of commands."""

    topic: Topic
    type: Annotated[str, one_of(*COMMAND_TYPES)] = next(iter(COMMAND_TYPES))
    time_from_start_s: Annotated[float, Meta(ge=0, le=60)] | UnsetType = UNSET
    frame_id: Name | UnsetType = UNSET

    def __post_init__(self) -> None:
        for key, kind in (
            ('time_from_start_s', 'trajectory_msgs/JointTrajectory'),
            ('frame_id', 'geometry_msgs/TwistStamped'),
        ):
            if getattr(self, key) is not UNSET and self.type != kind:
                raise ValueError(f'{key} is of the type {kind}, and this is {self.type}')


class InterlockFile(Record, frozen=True, kw_only=True):
    """What `then` is forced while a state is below or above."""

    state: Name
    below: Value | UnsetType = UNSET
    above: Value | UnsetType = UNSET
    then: Annotated[
        dict[Name, Value], Meta(min_length=1, description='a mapping of actions to values')
    ]
    immediate: bool = False

    def __post_init__(self) -> None:
        if self.below is UNSET and self.above is UNSET:
            raise ValueError('below or above is missing')
        if (
            isinstance(self.below, float)
            and isinstance(self.above, float)
            and self.below >= self.above
        ):
            raise ValueError(
                f'below must be less than above, got {self.below:g} and {self.above:g}: it would '
                'always be active'
            )


class Unit(Record, frozen=True, kw_only=True):
    """The units of one state or action."""

    robot: Annotated[str, one_of(*UNIT_NAMES)]
    policy: Annotated[str, one_of(*UNIT_NAMES)]
    calibrated: Annotated[tuple[Value, Value], Meta(description='two numbers')] | UnsetType = UNSET


class Deadman(Record, frozen=True):
    """A button of a sensor_msgs/Joy that must be held; without topic, of the device itself."""

    button: Annotated[int, Meta(ge=0, le=63)]
    topic: Topic = ''


class JoyAxis(Record, frozen=True):
    """An axis that moves an action: `scale` per second at full deflection."""

    axis: Annotated[int, Meta(ge=0, le=63)]
    scale: Annotated[
        float,
        rule(
            bool,
            'a number from -1e+06 to 1e+06 but 0: the axis would move nothing',
            ge=-1e6,
            le=1e6,
        ),
    ]


class InterventionInput(Record, frozen=True):
    """
    The device of a person, who takes over with it:

        intervention:
          topic: leader/joint_states
          type: sensor_msgs/JointState
          timeout_s: 0.2                      # older commands and deadman messages do not count
          deadman: {topic: joy, button: 4}    # optional: a button that must be held

    With the type sensor_msgs/Joy, `axes` maps actions to axes, as units per second at full
    deflection: `axes: {shoulder_pan.pos: {axis: 0, scale: 0.5}}`.
    """

    topic: Topic
    type: Annotated[str, one_of(*DEVICE_TYPES)] = DEVICE_TYPE
    timeout_s: Annotated[float, Meta(ge=0.01, le=2.0)] = 0.2
    deadman: Deadman | UnsetType = UNSET
    axes: Annotated[
        dict[Name, JoyAxis], Meta(min_length=1, description='a mapping of actions to axes')
    ] = {}

    def __post_init__(self) -> None:
        if (self.type == JOY) != bool(self.axes):
            missing = 'is missing' if self.type == JOY else f'is of {JOY}, and this is {self.type}'
            raise ValueError(f'axes {missing}')
        if self.deadman and not self.deadman.topic and self.type != JOY:
            raise ValueError(f'deadman: topic is missing: {self.topic} is of {self.type}')

    @property
    def deadman_topic(self) -> str:
        """The topic of the deadman, empty without one."""
        return (self.deadman.topic or self.topic) if self.deadman else ''


class RobotFile(Record, frozen=True, kw_only=True):
    """The keys of a robot file."""

    name: Name
    fps: Annotated[float, Meta(ge=0.1, le=1000)]
    state: Annotated[
        tuple[
            Annotated[
                JointStates | Odometry | Values,
                Meta(description='a group with topic, type and what is read of it'),
            ],
            ...,
        ],
        Meta(min_length=1, description='a list of topics'),
    ]
    cameras: dict[Name, Camera]
    actions: Annotated[
        dict[Name, PositionAction | VelocityAction],
        Meta(min_length=1, description='names with their settings, at least one'),
    ]
    command: Command
    interlocks: dict[Name, InterlockFile] = {}
    safe_pose: (
        Annotated[
            dict[Name, Value], Meta(min_length=1, description='a mapping of actions to values')
        ]
        | UnsetType
    ) = UNSET
    rename_map: dict[Name, Name] = {}
    units: dict[Name, Unit] = {}
    urdf: Name | UnsetType = UNSET
    limits: Limits = 'file'
    intervention: InterventionInput | UnsetType = UNSET


def normalized(content: Any) -> Any:
    """Return a content with the types and motions that are its defaults, in their short form."""
    if not isinstance(content, dict):
        return content
    found = dict(content)
    if isinstance(state := found.get('state'), list):
        found['state'] = [_with_type(each, JOINT_STATE) for each in state]
    for key in ('cameras', 'actions'):
        if isinstance(entries := found.get(key), dict):
            found[key] = {name: _with_type(each) for name, each in entries.items()}
    if isinstance(actions := found.get('actions'), dict):
        found['actions'] = {
            name: {'motion': 'position', **each} if isinstance(each, dict) else each
            for name, each in actions.items()
        }
    for key in ('command', 'intervention'):
        if key in found:
            found[key] = _with_type(found[key])
    return found


def _with_type(entry: Any, default: str = '') -> Any:
    if not isinstance(entry, dict):
        return entry
    found = {**({'type': default} if default else {}), **entry}
    if isinstance(kind := found.get('type'), str):
        found['type'] = kind.replace('/msg/', '/')
    return found
