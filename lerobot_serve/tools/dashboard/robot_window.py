# SPDX-License-Identifier: Apache-2.0
"""
The last minute of one robot: commands, the newest chunk, events. The event loop's thread.

Texts are bounded by whoever adds them; the window is bounded by time and by number: a 500 Hz robot
keeps every eighth command, and each one at which the rung or the cage's result changed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from lerobot_serve.tools.dashboard.document.fleet_document import Json

WINDOW_S, RATE_HZ = 60, 60
POINTS, EVENTS = WINDOW_S * RATE_HZ, 200
LEAST_STEP_MS = 1000 / RATE_HZ


class Executed(NamedTuple):
    """One command: when, what, and why. Values that are no number are None."""

    t_ms: int
    commanded: tuple[float | None, ...]
    wanted: tuple[float | None, ...]
    rung: str
    cage: str
    reason: str = ''


class ShownPlan(NamedTuple):
    """The newest chunk, in the robot's units: a series for each joint."""

    t_ms: list[int]
    actions: list[list[float | None]]
    policy: str
    seq: int


class RobotEvent(NamedTuple):
    """Something that happened to the robot."""

    t_ms: int
    kind: str
    text: str


@dataclass(slots=True)
class Heard:
    """What was heard of a robot since the last time."""

    executed: list[Executed] = field(default_factory=list)
    plan: ShownPlan | None = None
    events: list[RobotEvent] = field(default_factory=list)
    names: tuple[str, ...] = ()
    images: tuple[int, tuple[str, ...]] | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.executed or self.plan or self.events or self.names or self.images)


class RobotWindow:
    """See the module."""

    def __init__(self, robot: str) -> None:
        self._robot = robot
        self._points: deque[Executed] = deque(maxlen=POINTS)
        self._events: deque[RobotEvent] = deque(maxlen=EVENTS)
        self._plan: ShownPlan | None = None
        self._names: tuple[str, ...] = ()
        self._images: Json | None = None
        self._last: Executed | None = None

    def add(self, heard: Heard) -> Json:
        """Add what was heard; return the `append` for viewers, empty for nothing new."""
        new: Json = {}
        points, events = self._add_points(heard.executed), list(heard.events)
        if points:
            new['executed'] = columns(points)
        events += self._changes(heard.executed)
        if events:
            self._events.extend(events)
            new['events'] = [event._asdict() for event in events]
        if heard.plan:
            self._plan = heard.plan
            new['plan'] = heard.plan._asdict()
        if heard.names and heard.names != self._names:
            self._names = heard.names
            new['names'] = list(heard.names)
        if heard.images:
            seq, cameras = heard.images
            self._images = new['images'] = {'seq': seq, 'cameras': list(cameras)}
        return new

    def _add_points(self, executed: list[Executed]) -> list[Executed]:
        """Add the points that are kept, and drop the old ones."""
        added = []
        for point in executed:
            last = self._points[-1] if self._points else None
            if last and len(last.commanded) != len(point.commanded):
                # another robot under this name
                self._points.clear()
            elif last and not _is_kept(last, point):
                continue
            self._points.append(point)
            added.append(point)
        while self._points and self._points[-1].t_ms - self._points[0].t_ms > WINDOW_S * 1000:
            self._points.popleft()
        return added

    def _changes(self, executed: list[Executed]) -> list[RobotEvent]:
        """Return an event for each change of the rung or of the cage's result."""
        events = []
        for point in executed:
            last, self._last = self._last, point
            if last is None:
                continue
            if point.rung != last.rung:
                text = f'{last.rung} -> {point.rung}'
                events.append(RobotEvent(point.t_ms, 'ladder', _with_reason(text, point.reason)))
            if point.cage != last.cage and point.cage != 'PASS':
                events.append(
                    RobotEvent(point.t_ms, 'cage', _with_reason(point.cage, point.reason))
                )
        return events[-EVENTS:]

    def snapshot(self, state: Json | None) -> Json:
        """Return the whole window; `state` is the row of the robot."""
        return {
            'robot': self._robot,
            'names': list(self._names),
            'window_s': WINDOW_S,
            'executed': columns(list(self._points)),
            'plan': self._plan._asdict() if self._plan else None,
            'events': [event._asdict() for event in self._events],
            'images': self._images,
            'state': state,
        }


def _is_kept(last: Executed, point: Executed) -> bool:
    is_new = (point.rung, point.cage) != (last.rung, last.cage)
    return is_new or point.t_ms - last.t_ms >= LEAST_STEP_MS


def _with_reason(text: str, reason: str) -> str:
    return f'{text}: {reason}' if reason else text


def columns(points: list[Executed]) -> Json:
    """Return points as columns, one series for each joint."""
    return {
        't_ms': [point.t_ms for point in points],
        'commanded': series([point.commanded for point in points]),
        'wanted': series([point.wanted for point in points]),
        'rung': [point.rung for point in points],
        'cage': [point.cage for point in points],
    }


def series(rows: list[tuple[float | None, ...]]) -> list[list[float | None]]:
    """Return rows as columns; a row that is shorter, such as one without a source, has None."""
    width = max(map(len, rows), default=0)
    return [[row[i] if i < len(row) else None for row in rows] for i in range(width)]
