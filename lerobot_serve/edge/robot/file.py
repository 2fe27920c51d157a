# SPDX-License-Identifier: Apache-2.0
"""
Make a robot description of a robot file, and read position and velocity limits from its URDF.

Each error names its place in the file; `checks` validates the whole. A URDF needs no document
type. With one, entities could expand to gigabytes or read local files, so such a file is refused
before it is parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from msgspec import UNSET, UnsetType

from lerobot_serve.cage.description import ActionLimit, Interlock, Motion
from lerobot_serve.edge.robot import checks
from lerobot_serve.edge.robot.description import (
    CameraInput,
    CommandOutput,
    RobotDescription,
    StateSource,
)
from lerobot_serve.edge.robot.file_format import (
    Command,
    FAR,
    JOINT_STATE,
    JointStates,
    normalized,
    ODOMETRY,
    Odometry,
    parse_yaml,
    PositionAction,
    read_bytes,
    ROBOT_BYTES_LIMIT,
    RobotFile,
    RobotFileError,
    Unit,
    URDF_BYTES_LIMIT,
    VALUES,
    Values,
    VelocityAction,
)
from lerobot_serve.edge.robot.units import convert_between, UnitConversion
from lerobot_serve.files import load as files
from lerobot_serve.files.parsing import shown

MOVING_JOINT_TYPES = ('revolute', 'continuous', 'prismatic')
# a larger number in a URDF means no limit
NO_LIMIT_ABOVE = 1e6


@dataclass(frozen=True, slots=True)
class JointLimit:
    """Limits in rad or m, and per second; None: no limit."""

    low: float | None
    high: float | None
    velocity: float | None


class Urdf:
    """The joints of one URDF file."""

    def __init__(self, text: str, name: str) -> None:
        """Parse the text. Raises RobotFileError; `name` is the file name in its texts."""
        self._name = name
        if '<!DOCTYPE' in text or '<!ENTITY' in text:
            raise RobotFileError(
                f'{name}: a URDF must have no document type; remove <!DOCTYPE ...>'
            )
        try:
            robot = ElementTree.fromstring(text)
        except (ElementTree.ParseError, ValueError) as error:
            raise RobotFileError(f'{name}: not XML ({error})') from None
        if robot.tag != 'robot':
            raise RobotFileError(f'{name}: not a URDF: it begins with <{robot.tag}>, not <robot>')
        # only these are joints: transmissions and ros2_control also contain <joint>
        self._joints: dict[str, ElementTree.Element] = {}
        for joint in robot.findall('joint'):
            joint_name = joint.get('name', '')
            if joint_name in self._joints:
                raise RobotFileError(f'{name}: duplicate joint {shown(joint_name)}')
            self._joints[joint_name] = joint

    def limit(self, joint: str, place: str) -> JointLimit:
        """Return the limits of a joint. Raises RobotFileError with the place that refers to it."""
        where = f'{place}: {self._name}'
        if joint not in self._joints:
            raise RobotFileError(
                f'{where}: no joint {joint!r}; it has {shown(list(self._joints))}'
            )
        element = self._joints[joint]
        kind, limit = element.get('type'), element.find('limit')
        if kind not in MOVING_JOINT_TYPES:
            raise RobotFileError(
                f'{where}: the joint {joint!r} is {shown(kind)} and cannot be commanded'
            )
        if limit is None:
            if kind == 'continuous':
                return JointLimit(None, None, None)
            raise RobotFileError(f'{where}: the joint {joint!r} has no <limit>')
        where += f': joint {joint}'
        velocity = _number(limit, 'velocity', None, where)
        if velocity is not None and velocity <= 0:
            raise RobotFileError(f'{where}: velocity must be above 0, got {velocity:g}')
        if kind == 'continuous':
            return JointLimit(None, None, velocity)
        # for a joint with an end, a missing attribute is 0
        low, high = (_number(limit, key, '0', where) for key in ('lower', 'upper'))
        return JointLimit(low, high, velocity)


def load_urdf(path: Path) -> Urdf:
    """Return the joints of a file. Raises RobotFileError."""
    try:
        return Urdf(read_bytes(path, URDF_BYTES_LIMIT).decode(), str(path))
    except UnicodeDecodeError:
        raise RobotFileError(f'{path}: not XML in UTF-8') from None


def _number(limit: ElementTree.Element, key: str, default: str | None, where: str) -> float | None:
    text = limit.get(key, default)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise RobotFileError(f'{where}: {key} must be a number, got {shown(text)}')
    return value if abs(value) <= NO_LIMIT_ABOVE else None


# field of a JointState -> suffix of its names in LeRobot
SUFFIXES = {'position': '.pos', 'velocity': '.vel', 'effort': '.eff'}
FindLimit = Callable[[str, str], JointLimit]


def load(path: Path) -> RobotDescription:
    """Load the robot description. Raises RobotFileError."""
    data = read_bytes(path, ROBOT_BYTES_LIMIT)
    return parse(parse_yaml(data, str(path)), str(path), path.parent)


def parse(content: Any, place: str, folder: Path = Path()) -> RobotDescription:
    """
    Parse the content of a robot file; URDF paths are relative to `folder`. Raises RobotFileError.
    """
    try:
        given = files.load(RobotFile, normalized(content), place)
    except files.Refused as refused:
        raise RobotFileError(str(refused)) from None
    find_limit = load_urdf(folder / given.urdf).limit if given.urdf else None
    robot = RobotDescription(
        name=given.name,
        fps=given.fps,
        state=tuple(
            _source(each, f'{place}: state[{number}]') for number, each in enumerate(given.state)
        ),
        cameras=tuple(
            CameraInput(name, each.topic, each.type, each.max_age_s, each.max_stamp_age_s)
            for name, each in given.cameras.items()
        ),
        actions=tuple(
            _Action(name, each, f'{place}: actions: {name}', given).limit(find_limit)
            for name, each in given.actions.items()
        ),
        command=_command(given.command),
        interlocks=tuple(
            Interlock(
                name,
                each.state,
                None if each.below is UNSET else each.below,
                None if each.above is UNSET else each.above,
                each.then,
                each.immediate,
            )
            for name, each in given.interlocks.items()
        ),
        safe_pose=_safe_pose(given, f'{place}: safe_pose'),
        rename_map=given.rename_map,
        units={name: _unit(each, f'{place}: units: {name}') for name, each in given.units.items()},
        intervention=given.intervention or None,
    )
    checks.check_robot(robot, place)
    return robot


def _source(given: JointStates | Odometry | Values, place: str) -> StateSource:
    if isinstance(given, Values):
        return StateSource(given.topic, VALUES, given.names, '', given.names, given.max_age_s)
    field: str
    if isinstance(given, JointStates):
        kind, fields, field = JOINT_STATE, given.joints, given.field
        names = given.names or tuple(f'{joint}{SUFFIXES[field]}' for joint in fields)
    else:
        kind, fields, field = ODOMETRY, given.fields, ''
        names = given.names or fields
    if len(names) != len(fields):
        raise RobotFileError(
            f'{place}: names must be {len(fields)}, one for each value, got {len(names)}'
        )
    ages_s = given.max_age_s, given.max_stamp_age_s
    return StateSource(given.topic, kind, fields, field, names, *ages_s)


class _Action:
    """The limits of one action, from the file and from the URDF."""

    def __init__(
        self, name: str, given: PositionAction | VelocityAction, place: str, file: RobotFile
    ) -> None:
        self._name, self._given, self._place, self._fps = name, given, place, file.fps
        self._limits = given.limits or file.limits

    def limit(self, find_limit: FindLimit | None) -> ActionLimit:
        """Return them. Raises RobotFileError."""
        given, limit = self._given, self._joint_limit(find_limit)
        lead, velocity = math.inf, math.inf
        if isinstance(given, VelocityAction):
            motion, speed = Motion.VELOCITY, limit.velocity
            low, high = self._range(None if speed is None else -speed, speed)
            max_step, acceleration = self._rates('max_acceleration', None, span=high - low)
        else:
            motion, lead = Motion.POSITION, given.max_lead or math.inf
            acceleration = given.max_acceleration or math.inf
            low, high = self._range(limit.low, limit.high)
            max_step, velocity = self._rates('max_velocity', limit.velocity, span=high - low)
        return ActionLimit(
            self._name,
            given.joint,
            motion,
            low=low,
            high=high,
            max_step=max_step,
            max_velocity=velocity,
            max_acceleration=acceleration,
            max_lead=lead,
        )

    def _joint_limit(self, find_limit: FindLimit | None) -> JointLimit:
        """Return the URDF limits of a joint if configured, otherwise none."""
        if self._limits == 'file':
            return JointLimit(None, None, None)
        if find_limit is None:
            raise RobotFileError(f'{self._place}: limits is urdf, but the file names no urdf')
        return find_limit(self._given.joint, self._place)

    def _bounded(
        self, key: str, low: float, high: float, default: float | None, why: str
    ) -> float:
        """Return a number of the file in [low, high]; `why` names the origin of these bounds."""
        value: float | UnsetType = getattr(self._given, key)
        if isinstance(value, UnsetType):
            if default is None:
                raise RobotFileError(f'{self._place}: {key} is missing')
            return default
        if not low <= value <= high:
            raise RobotFileError(
                f'{self._place}: {key} must be in [{low:g}, {high:g}]{why}, got {shown(value)}'
            )
        return value

    def _range(self, urdf_low: float | None, urdf_high: float | None) -> tuple[float, float]:
        """Return min and max; the file may narrow the range of the URDF, never widen it."""
        why = '' if urdf_low is None and urdf_high is None else ' of the URDF'
        floor = -FAR if urdf_low is None else urdf_low
        ceiling = FAR if urdf_high is None else urdf_high
        low = self._bounded('min', floor, ceiling, urdf_low, why)
        high = self._bounded('max', floor, ceiling, urdf_high, why)
        if not low < high:
            raise RobotFileError(f'{self._place}: min must be below max, got {low:g} and {high:g}')
        return low, high

    def _rates(self, key: str, limit: float | None, *, span: float) -> tuple[float, float]:
        """
        Return max_step and the change per second; one follows from the other. A step beyond the
        `span` from min to max would not be a limit.
        """
        rate = None
        if getattr(self._given, key) is not UNSET or limit is not None:
            ceiling, why = (FAR, '') if limit is None else (limit, ' of the URDF')
            rate = self._bounded(key, 1e-6, ceiling, limit, why)
        elif self._given.max_step is UNSET:
            raise RobotFileError(f'{self._place}: max_step or {key} is missing')
        default = None if rate is None else rate / self._fps
        step = self._bounded('max_step', 1e-6, span, default, ', from min to max')
        return step, step * self._fps if rate is None else rate


def _command(given: Command) -> CommandOutput:
    return CommandOutput(
        given.type, given.topic, given.frame_id or '', given.time_from_start_s or 0.0
    )


def _safe_pose(given: RobotFile, place: str) -> tuple[float, ...] | None:
    if isinstance(given.safe_pose, UnsetType):
        return None
    actions = list(given.actions)
    for name in given.safe_pose:
        if name not in actions:
            raise RobotFileError(f'{place}: no action {name!r}; there are {", ".join(actions)}')
    for name in actions:
        if name not in given.safe_pose:
            raise RobotFileError(f'{place}: {name} is missing')
    return tuple(given.safe_pose[name] for name in actions)


def _unit(given: Unit, place: str) -> UnitConversion:
    """Return the units of one state or action."""
    try:
        return convert_between(given.robot, given.policy, given.calibrated or None)
    except ValueError as error:
        raise RobotFileError(f'{place}: {error}') from None
