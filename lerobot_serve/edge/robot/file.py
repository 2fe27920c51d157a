# SPDX-License-Identifier: Apache-2.0
"""
Parse a robot description from its YAML file.

Each error names its place in the file; `checks` validates the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any

from lerobot_serve.cage.description import ActionLimit, Interlock, Motion
from lerobot_serve.edge.robot import checks, urdf
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES
from lerobot_serve.edge.robot.description import (
    CameraInput,
    CommandOutput,
    RobotDescription,
    StateSource,
)
from lerobot_serve.edge.robot.intervention import parse_intervention
from lerobot_serve.edge.robot.units import convert_between, UNIT_NAMES, UnitConversion
from lerobot_serve.edge.robot.urdf import JointLimit
from lerobot_serve.edge.robot.yaml_mapping import (
    named_entries,
    number,
    read_yaml,
    RobotFileError,
    shortened,
    text,
    YamlMapping,
)

KEYS = (
    'name fps state cameras actions command interlocks safe_pose rename_map units urdf limits '
    'intervention'
)
JOINT_STATE = 'sensor_msgs/JointState'
STATE_KEYS = {
    JOINT_STATE: 'topic type joints field names max_age_s max_stamp_age_s',
    'nav_msgs/Odometry': 'topic type fields names max_age_s max_stamp_age_s',
    # without a stamp
    'std_msgs/Float64MultiArray': 'topic type names max_age_s',
}
# field of a JointState -> suffix of its names in LeRobot
SUFFIXES = {'position': '.pos', 'velocity': '.vel', 'effort': '.eff'}
AXES = ('x', 'y', 'z')
ODOMETRY_FIELDS = [
    *(f'{part}.{axis}' for part in ('linear', 'angular', 'pose') for axis in AXES),
    'pose.yaw',
]
CAMERA_TYPES = ['sensor_msgs/Image', 'sensor_msgs/CompressedImage']
ACTION_KEYS = {
    Motion.POSITION: (
        'joint motion limits min max max_step max_velocity max_acceleration max_lead'
    ),
    Motion.VELOCITY: 'joint motion limits min max max_step max_acceleration',
}
# above any value of a real robot
FAR = 1e6


def load(path: Path) -> RobotDescription:
    """Load the robot description. Raises RobotFileError."""
    return parse(read_yaml(path), str(path), path.parent)


def parse(content: Any, place: str, folder: Path = Path()) -> RobotDescription:
    """
    Parse the content of a robot file; URDF paths are relative to `folder`. Raises RobotFileError.
    """
    top = YamlMapping(content, place, KEYS)
    in_cameras = f'{place}: cameras'
    robot = RobotDescription(
        name=top.text('name'),
        fps=top.number('fps', 0.1, 1000),
        state=_state(top.need('state'), f'{place}: state'),
        cameras=tuple(_camera(*item) for item in named_entries(top.need('cameras'), in_cameras)),
        actions=_actions(top, folder),
        command=_command(top.need('command'), f'{place}: command'),
        interlocks=tuple(_interlock(*item) for item in _optional(top, 'interlocks')),
        safe_pose=_safe_pose(top),
        rename_map=_rename_map(top),
        units={name: _unit(content, where) for name, content, where in _optional(top, 'units')},
        intervention=(
            parse_intervention(top.need('intervention'), f'{place}: intervention')
            if 'intervention' in top
            else None
        ),
    )
    checks.check_robot(robot, place)
    return robot


def _state(content: Any, place: str) -> tuple[StateSource, ...]:
    if not isinstance(content, list) or not content:
        raise RobotFileError(f'{place}: expected a list of topics, got {shortened(content)}')
    return tuple(_source(item, f'{place}: {i + 1}') for i, item in enumerate(content))


def _source(content: Any, place: str) -> StateSource:
    every_key = 'topic type joints fields field names max_age_s max_stamp_age_s'
    kind = YamlMapping(content, place, every_key).message_type(list(STATE_KEYS), JOINT_STATE)
    table = YamlMapping(content, place, STATE_KEYS[kind])
    field = ''
    if kind == JOINT_STATE:
        fields = table.names('joints')
        field = table.choice('field', list(SUFFIXES), 'position')
        names = tuple(f'{joint}{SUFFIXES[field]}' for joint in fields)
    elif kind == 'nav_msgs/Odometry':
        names = fields = table.names('fields', ODOMETRY_FIELDS)
    else:
        names = fields = table.names('names')
    if 'names' in table:
        names = table.names('names')
    if len(names) != len(fields):
        raise RobotFileError(
            f'{place}: names must be {len(fields)}, one for each value, got {len(names)}'
        )
    topic, ages_s = table.topic('topic'), _max_ages_s(table)
    return StateSource(topic, kind, fields, field, names, *ages_s)


def _camera(name: str, content: Any, place: str) -> CameraInput:
    table = YamlMapping(content, place, 'topic type max_age_s max_stamp_age_s')
    kind = table.message_type(CAMERA_TYPES, CAMERA_TYPES[0])
    return CameraInput(name, table.topic('topic'), kind, *_max_ages_s(table))


def _max_ages_s(table: YamlMapping) -> tuple[float, float]:
    """Return the bounds of the age since arrival and by the stamp; 0 for no bound of the stamp."""
    by_stamp_s = table.number('max_stamp_age_s', 0.001, 60, 0.0)
    return table.number('max_age_s', 0.001, 60), by_stamp_s


@dataclass(frozen=True, slots=True)
class _Shared:
    """Settings shared by all actions of a file."""

    fps: float
    limits: str
    joint_limit: Callable[[str, str], JointLimit] | None


def _actions(top: YamlMapping, folder: Path) -> tuple[ActionLimit, ...]:
    joints = urdf.load(folder / top.text('urdf')).limit if 'urdf' in top else None
    limits = top.choice('limits', ['file', 'urdf'], 'file')
    shared = _Shared(top.number('fps', 0.1, 1000), limits, joints)
    actions = named_entries(top.need('actions'), f'{top.place}: actions')
    if not actions:
        raise RobotFileError(f'{top.place}: actions is empty; list at least one')
    return tuple(_action(*item, shared) for item in actions)


def _action(name: str, content: Any, place: str, shared: _Shared) -> ActionLimit:
    motions, every_key = [motion.value for motion in Motion], ACTION_KEYS[Motion.POSITION]
    motion = Motion(YamlMapping(content, place, every_key).choice('motion', motions, 'position'))
    table = YamlMapping(content, place, ACTION_KEYS[motion])
    joint = table.text('joint')
    limit = _joint_limit(table, joint, shared)
    acceleration = table.number('max_acceleration', 1e-6, FAR, default=math.inf)
    if motion is Motion.VELOCITY:
        speed, velocity = limit.velocity, math.inf
        low, high = _range(table, None if speed is None else -speed, speed)
        max_step, acceleration = _rates(
            table, 'max_acceleration', None, shared.fps, span=high - low
        )
    else:
        low, high = _range(table, limit.low, limit.high)
        max_step, velocity = _rates(
            table, 'max_velocity', limit.velocity, shared.fps, span=high - low
        )
    lead = table.number('max_lead', 1e-6, FAR, default=math.inf)
    return ActionLimit(
        name,
        joint,
        motion,
        low=low,
        high=high,
        max_step=max_step,
        max_velocity=velocity,
        max_acceleration=acceleration,
        max_lead=lead,
    )


def _joint_limit(table: YamlMapping, joint: str, shared: _Shared) -> JointLimit:
    """Return the URDF limits of a joint if configured, otherwise none."""
    if table.choice('limits', ['file', 'urdf'], shared.limits) == 'file':
        return JointLimit(None, None, None)
    if shared.joint_limit is None:
        raise RobotFileError(f'{table.place}: limits is urdf, but the file names no urdf')
    return shared.joint_limit(joint, table.place)


def _range(
    table: YamlMapping, urdf_low: float | None, urdf_high: float | None
) -> tuple[float, float]:
    """Return min and max; the file may narrow the range of the URDF, never widen it."""
    why = '' if urdf_low is None and urdf_high is None else ' of the URDF'
    floor = -FAR if urdf_low is None else urdf_low
    ceiling = FAR if urdf_high is None else urdf_high
    low = table.number('min', floor, ceiling, urdf_low, why)
    high = table.number('max', floor, ceiling, urdf_high, why)
    if not low < high:
        raise RobotFileError(f'{table.place}: min must be below max, got {low:g} and {high:g}')
    return low, high


def _rates(
    table: YamlMapping, key: str, limit: float | None, fps: float, *, span: float
) -> tuple[float, float]:
    """
    Return max_step and the change per second; one follows from the other. A step beyond the `span`
    from min to max would be no limit.
    """
    of_span = ', from min to max'
    if key in table or limit is not None:
        ceiling, why = (FAR, '') if limit is None else (limit, ' of the URDF')
        rate = table.number(key, 1e-6, ceiling, limit, why)
        return table.number('max_step', 1e-6, span, rate / fps, of_span), rate
    if 'max_step' not in table:
        raise RobotFileError(f'{table.place}: max_step or {key} is missing')
    step = table.number('max_step', 1e-6, span, None, of_span)
    return step, step * fps


def _command(content: Any, place: str) -> CommandOutput:
    every_key = 'topic type time_from_start_s frame_id'
    kinds = list(COMMAND_TYPES)
    kind = YamlMapping(content, place, every_key).message_type(kinds, kinds[0])
    table = YamlMapping(content, place, COMMAND_TYPES[kind].keys)
    frame_id = table.text('frame_id') if 'frame_id' in table else ''
    seconds = table.number('time_from_start_s', 0, 60, default=0.0)
    return CommandOutput(kind, table.topic('topic'), frame_id, seconds)


def _interlock(name: str, content: Any, place: str) -> Interlock:
    table = YamlMapping(content, place, 'state below above then immediate')
    if 'below' not in table and 'above' not in table:
        raise RobotFileError(f'{place}: below or above is missing')
    below, above = (
        table.number(key, -FAR, FAR) if key in table else None for key in ('below', 'above')
    )
    if below is not None and above is not None and below >= above:
        raise RobotFileError(
            f'{place}: below must be less than above, got {below:g} and {above:g}: it would '
            'always be active'
        )
    return Interlock(
        name,
        table.text('state'),
        below,
        above,
        _values(table.need('then'), f'{place}: then'),
        table.flag('immediate'),
    )


def _safe_pose(top: YamlMapping) -> tuple[float, ...] | None:
    if 'safe_pose' not in top:
        return None
    place = f'{top.place}: safe_pose'
    given = _values(top.need('safe_pose'), place)
    actions = list(top.need('actions'))
    for name in given:
        if name not in actions:
            raise RobotFileError(f'{place}: no action {name!r}; there are {", ".join(actions)}')
    for name in actions:
        if name not in given:
            raise RobotFileError(f'{place}: {name} is missing')
    return tuple(given[name] for name in actions)


def _values(content: Any, place: str) -> dict[str, float]:
    """Return the values of a mapping from actions to numbers."""
    if not content:
        raise RobotFileError(
            f'{place}: expected a mapping of actions to values, got {shortened(content)}'
        )
    return {
        name: number(value, -FAR, FAR, what) for name, value, what in named_entries(content, place)
    }


def _rename_map(top: YamlMapping) -> dict[str, str]:
    return {name: text(new, place) for name, new, place in _optional(top, 'rename_map')}


def _unit(content: Any, place: str) -> UnitConversion:
    """Return the units of one state or action."""
    table = YamlMapping(content, place, 'robot policy calibrated')
    for key in ('robot', 'policy'):
        table.need(key)
    robot, policy = (table.choice(key, list(UNIT_NAMES), '') for key in ('robot', 'policy'))
    calibrated = None
    if 'calibrated' in table:
        ends = table.need('calibrated')
        if not isinstance(ends, list) or len(ends) != 2:
            raise RobotFileError(f'{place}: calibrated must be two numbers, got {shortened(ends)}')
        low, high = (number(end, -FAR, FAR, f'{place}: calibrated') for end in ends)
        calibrated = low, high
    try:
        return convert_between(robot, policy, calibrated)
    except ValueError as error:
        raise RobotFileError(f'{place}: {error}') from None


def _optional(top: YamlMapping, key: str) -> list[tuple[str, Any, str]]:
    return named_entries(top.need(key), f'{top.place}: {key}') if key in top else []
