# SPDX-License-Identifier: Apache-2.0
"""
What is shown: one value of one entity at one instant. Plain data; any thread.

Each entry is on the timeline TIME, the reception time at the one process that recorded or shows
the messages, so that messages of all machines may be compared there. Stamps of a machine are on a
timeline of that machine only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
import hashlib
from typing import NamedTuple, TypeAlias

from lerobot_serve.contract.data_path.message_parts import Image

TIME, CONTROL_STEP = 'time', 'control_step'
ROBOTS, NODES = 'robots', 'nodes'
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


class Event(NamedTuple):
    """A line of a log."""

    text: str
    level: Level = Level.INFO


class Frame(NamedTuple):
    """A camera image that was checked."""

    image: Image


Value: TypeAlias = Scalar | State | Event | Frame


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


def clock_of(machine: str) -> str:
    """Return the timeline of the clock of a robot or node."""
    return f'clock of {path_part(machine)}'


Count: TypeAlias = Callable[..., None]


class PartMapping:
    """Emits entities, states and events below the path of one robot or node."""

    def __init__(self, root: str, name: str, emit: Emit, count: Count) -> None:
        self.path = (root, path_part(name))
        self._emit_at, self._count = emit, count
        self._clock = clock_of(name)
        self._states: dict[str, str] = {}

    def _emit(self, path: Path, value: Value, times: Times) -> None:
        self._emit_at((*self.path, *path), value, times)

    def _event(self, text: str, times: Times, level: Level = Level.INFO) -> None:
        """Show an event. The viewer mixes up the levels of rows that have different clocks."""
        self._emit((EVENTS,), Event(text, level), replace(times, clock=''))

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
