# SPDX-License-Identifier: Apache-2.0
"""
Keeps the last seconds in memory, and writes a bag of what was before and after a trigger.

The writing thread, but for `save`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import threading
from typing import Any

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import EdgeState, EpisodeOutcome, ExecutedAction
from lerobot_serve.tools.bags.message import BagMessage, DIVERGENCE, OUTCOME
from lerobot_serve.tools.bags.writer import BagWriter
from lerobot_serve.tools.recorder.strategy_writer import (
    MemoryRing,
    read_report,
    SortedMessage,
    StrategyWriter,
)


@dataclass(slots=True)
class Triggers:
    """
    Finds what is a highlight in the messages of one robot. A condition that lasts is one trigger:
    its begin. `divergence_limit` 0: the divergence is none.
    """

    divergence_limit: float = 0.0
    tripped: bool = False
    stalled: bool = False
    stalls: int | None = None
    person_acts: bool = False
    taken_over: bool = False

    def find(self, message: BagMessage) -> str:
        """Return the reason, empty for an ordinary message."""
        report = read_report(message)
        if isinstance(report, ExecutedAction):
            return self._in_action(report)
        if isinstance(report, EdgeState):
            return self._in_state(report)
        try:
            if message.type == OUTCOME:
                has_failed = message.record().outcome == EpisodeOutcome.Outcome.FAILURE
                return 'failure' if has_failed else ''
            if message.type == DIVERGENCE and self.divergence_limit > 0:
                is_far = message.record().divergence > self.divergence_limit
                return 'divergence' if is_far else ''
        except Malformed:
            pass
        return ''

    def _in_action(self, action: ExecutedAction) -> str:
        was_tripped, self.tripped = self.tripped, bool(action.cage_result)
        if self.tripped and not was_tripped:
            return 'cage_trip'
        acted, self.person_acts = self.person_acts, action.source == ExecutedAction.Source.PERSON
        return 'takeover' if self.person_acts and not acted else ''

    def _in_state(self, state: EdgeState) -> str:
        was_stalled, self.stalled = self.stalled, state.state == EdgeState.State.STALLED
        before, self.stalls = self.stalls, state.stalls
        # a short stall is over before the next state
        if (self.stalled and not was_stalled) or (before is not None and state.stalls > before):
            return 'stall'
        was_taken, self.taken_over = self.taken_over, bool(state.intervention)
        return 'takeover' if self.taken_over and not was_taken else ''


# of a whole fleet
RING_LIMIT_BYTES = 512 << 20
BUTTON = 'button'


@dataclass(slots=True)
class _Robot:
    """The highlight of one robot."""

    triggers: Triggers
    # that is being written
    bag: BagWriter | None = None
    until_s: float = 0.0
    reasons: list[str] = field(default_factory=list)


class HighlightWriter(StrategyWriter):
    """See the module."""

    def __init__(self, *common: Any, **options: Any) -> None:
        super().__init__(*common, **options)
        self.ring = MemoryRing(self.rules.before, RING_LIMIT_BYTES)
        self._robots: dict[str, _Robot] = {}
        self._button = threading.Event()
        self._last_ns = 0

    def save(self) -> None:
        """Trigger a highlight of each robot. Any thread."""
        self._button.set()

    def record(self, message: SortedMessage) -> None:
        now_s, self._last_ns = self.clock(), message.message.stamp_ns
        for node in message.owners or ():
            if node not in self._robots and node in self.robots.robots:
                self._robots[node] = _Robot(Triggers(self.rules.divergence))
        self.ring.add(message, now_s)
        for node, robot in self._robots.items():
            if message.is_of(node):
                if robot.bag:
                    self.write_into(robot.bag, message)
                reason = robot.triggers.find(message.message) if message.owners else ''
                if reason:
                    self._trigger(node, now_s, reason)

    def poll(self) -> None:
        now_s = self.clock()
        self.ring.expire(now_s)
        if self._button.is_set():
            self._button.clear()
            for node in self._robots:
                self._trigger(node, now_s, BUTTON)
        for robot in self._robots.values():
            if now_s >= robot.until_s:
                self._finish(robot)

    def end(self) -> None:
        for robot in self._robots.values():
            self._finish(robot)

    def open_bags(self) -> list[BagWriter]:
        return [robot.bag for robot in self._robots.values() if robot.bag]

    def _trigger(self, node: str, now_s: float, reason: str) -> None:
        """Begin a highlight, or extend the one that is being written. Raises OSError."""
        robot = self._robots[node]
        robot.until_s = now_s + self.rules.after
        robot.reasons.append(reason)
        robot.bag = robot.bag or self._begin(node, reason)

    def _finish(self, robot: _Robot) -> None:
        """Complete the highlight of a robot, if one is being written. Raises OSError."""
        bag, robot.bag = robot.bag, None
        if bag:
            reasons, robot.reasons = robot.reasons, []
            self.finish(bag)
            self.log(f'{bag.folder.name}: {", ".join(dict.fromkeys(reasons))}')

    def _begin(self, node: str, reason: str) -> BagWriter:
        kept = list(self.ring.of(node))
        begin_ns = kept[0].message.stamp_ns if kept else self._last_ns
        bag = self.folder.begin(self.robots.client_id(node), reason, begin_ns=begin_ns)
        try:
            self.write_latched(bag, node, begin_ns)
            for message in kept:
                self.write_into(bag, message)
        except OSError:
            bag.abort()
            raise
        return bag
