# SPDX-License-Identifier: Apache-2.0
"""
Read position and velocity limits from a URDF.

A URDF needs no document type. With one, entities could expand to gigabytes or read local files, so
such a file is refused before it is parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from pathlib import Path
from xml.etree import ElementTree

from lerobot_serve.edge.robot.file_format import read_bytes, RobotFileError, URDF_BYTES_LIMIT
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


def load(path: Path) -> Urdf:
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
