# SPDX-License-Identifier: Apache-2.0
"""
What is shown: one value of one entity at one instant, and the parts of a view. Plain data; any
thread.

Each entry is on the timeline TIME, the reception time at the one process that recorded or shows
the messages, so that messages of all machines may be compared there. Stamps of a machine are on a
timeline of that machine only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
import hashlib
import re
from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

from lerobot_serve.contract.data_path.message_parts import Image

TIME, CONTROL_STEP = 'time', 'control_step'
ROBOTS, NODES, IMAGES = 'robots', 'nodes', 'images'
CAMERAS, JOINTS, STATES, EVENTS, PLAN = 'cameras', 'joints', 'states', 'events', 'plan'
REQUEST, QUEUE = 'request', 'queue'
# part of an entity path that Rerun keeps for itself
RESERVED = '__'

Path: TypeAlias = tuple[str, ...]


class Level(Enum):
    """Importance of an event."""

    INFO = 'INFO'
    WARN = 'WARN'
    ERROR = 'ERROR'


@dataclass(frozen=True, slots=True)
class Times:
    """
    `time_ns` is the reception time; `clock` and `stamp_ns` are a machine and the time by its
    clock; `control_step` is a number of the robot.
    """

    time_ns: int
    clock: str = ''
    stamp_ns: int = 0
    control_step: int | None = None


class Scalar(NamedTuple):
    """A point of a curve; NaN ends a line."""

    value: float


class State(NamedTuple):
    """The value that a state has from now on; empty: none."""

    value: str


class LogLine(NamedTuple):
    """A line of a log."""

    text: str
    level: Level = Level.INFO


class Frame(NamedTuple):
    """A camera image that was checked: of a request, or recorded as pixels, JPEG or PNG."""

    image: Image | NDArray[Any] | bytes


Value: TypeAlias = Scalar | State | LogLine | Frame


class Entry(NamedTuple):
    """One value of one entity."""

    path: Path
    value: Value
    times: Times


Emit: TypeAlias = Callable[[Path, Value, Times], None]


def path_part(text: str) -> str:
    """
    Return a name as one part of an entity path. A name that is empty, reserved or has control
    codes is changed and gets a hash, so that two names never collide.
    """
    if text and text.isprintable() and not text.startswith(RESERVED):
        return text
    shown = ''.join(each if each.isprintable() else '?' for each in text)
    digest = hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]
    return f'{shown.lstrip("_") or "name"}-{digest}'


Count: TypeAlias = Callable[..., None]


class PartMapping:
    """Emits entities, states and events below the path of one robot or node."""

    def __init__(self, root: str, name: str, emit: Emit, count: Count) -> None:
        self.path = (root, path_part(name))
        self._emit_at, self._count = emit, count
        self._clock = f'clock of {path_part(name)}'
        self._states: dict[str, str] = {}

    def _emit(self, path: Path, value: Value, times: Times) -> None:
        self._emit_at((*self.path, *path), value, times)

    def _event(self, text: str, times: Times, level: Level = Level.INFO) -> None:
        """Show an event. The viewer mixes up the levels of rows that have different clocks."""
        self._emit((EVENTS,), LogLine(text, level), replace(times, clock=''))

    def _change(self, name: str, value: str, times: Times) -> bool:
        """Show a state if it is another one; return whether it is."""
        if value == self._states.get(name, ''):
            return False
        self._states[name] = value
        self._emit((STATES, name), State(value), times)
        return True


def because(text: str, reason: str) -> str:
    """Return a text with its reason, if there is one."""
    return f'{text}: {reason}' if reason else text


# panels of one tab: more cannot be read
GROUP_LIMIT = 12
SIDE = re.compile(r'(left|right)(?=[_./ -]|$)')
ONLY_GROUP = 'joints'


@dataclass(slots=True)
class RobotLayout:
    """The parts of one robot in the order of their first entries; names are parts of paths."""

    cameras: list[str] = field(default_factory=list)
    joints: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ViewLayout:
    """All parts of a view; `version` grows with each new part."""

    robots: dict[str, RobotLayout] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    # topics of images that are of no known robot
    images: list[str] = field(default_factory=list)
    version: int = 0
    _known: set[Path] = field(default_factory=set)

    def add(self, path: Path) -> None:
        """Add the part to which an entity belongs."""
        part = path[:4] if path[2:3] in ((CAMERAS,), (JOINTS,)) else path[:2]
        if part in self._known:
            return
        self._known.add(part)
        self.version += 1
        if part[0] in (NODES, IMAGES):
            (self.nodes if part[0] == NODES else self.images).append(part[1])
        if part[0] == ROBOTS:
            robot = self.robots.setdefault(part[1], RobotLayout())
            if part[2:3] == (CAMERAS,):
                robot.cameras.append(part[3])
            elif part[2:3] == (JOINTS,):
                robot.joints.append(part[3])


def joint_groups(joints: list[str]) -> dict[str, list[str]]:
    """
    Return the joints by group: left and right where names say so, at most GROUP_LIMIT in each.
    """
    sides: dict[str, list[str]] = {}
    for joint in joints:
        side = SIDE.match(joint.lower())
        sides.setdefault(side[1] if side else ONLY_GROUP, []).append(joint)
    groups = {}
    for side_name, members in sides.items():
        parts = [members[i : i + GROUP_LIMIT] for i in range(0, len(members), GROUP_LIMIT)]
        for number, part in enumerate(parts, 1):
            groups[f'{side_name} {number}' if len(parts) > 1 else side_name] = part
    return groups
