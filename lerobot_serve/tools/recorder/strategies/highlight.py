# SPDX-License-Identifier: Apache-2.0
"""
Keeps the last seconds in memory, and writes a bag of what was before and after a trigger.

The writing thread, but for `save`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import threading
from typing import Any

from lerobot_serve.tools.bags.recording.writer import BagWriter
from lerobot_serve.tools.recorder.options import default
from lerobot_serve.tools.recorder.strategies.highlight_states import (
    Act,
    HighlightEvent,
    HighlightPhase,
    NEXT,
    Triggers,
)
from lerobot_serve.tools.recorder.strategies.memory_ring import MemoryRing
from lerobot_serve.tools.recorder.strategies.strategy_writer import (
    SortedMessage,
    StrategyWriter,
)

# of a whole fleet
RING_LIMIT_BYTES = 512 << 20
BUTTON = 'button'


@dataclass(frozen=True, slots=True)
class HighlightRules:
    """How much of before and after a trigger is kept [s], and which divergence is one."""

    before_s: float = default('before')
    after_s: float = default('after')
    divergence_limit: float = 0.0
    ring_limit_bytes: int = RING_LIMIT_BYTES


@dataclass(slots=True)
class _Robot:
    """The highlight of one robot."""

    triggers: Triggers
    phase: HighlightPhase = HighlightPhase.WATCHING
    bag: BagWriter | None = None
    until_s: float = 0.0
    reasons: list[str] = field(default_factory=list)


class HighlightWriter(StrategyWriter):
    """See the module."""

    def __init__(self, rules: HighlightRules, *common: Any, **options: Any) -> None:
        super().__init__(*common, **options)
        self._rules = rules
        self.ring = MemoryRing(rules.before_s, rules.ring_limit_bytes)
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
                self._robots[node] = _Robot(Triggers(self._rules.divergence_limit))
        self.ring.add(message, now_s)
        for node, robot in self._robots.items():
            if message.is_of(node):
                if robot.bag:
                    self.write_into(robot.bag, message)
                reason = robot.triggers.find(message.message) if message.owners else ''
                if reason:
                    self._on(HighlightEvent.TRIGGER, node, now_s, reason)

    def poll(self) -> None:
        now_s = self.clock()
        self.ring.expire(now_s)
        if self._button.is_set():
            self._button.clear()
            for node in self._robots:
                self._on(HighlightEvent.TRIGGER, node, now_s, BUTTON)
        for node, robot in self._robots.items():
            if robot.bag and now_s >= robot.until_s:
                self._on(HighlightEvent.TIME_OVER, node, now_s)

    def end(self) -> None:
        for node in self._robots:
            self._on(HighlightEvent.TIME_OVER, node, self.clock())

    def open_bags(self) -> list[BagWriter]:
        return [robot.bag for robot in self._robots.values() if robot.bag]

    def _on(self, event: HighlightEvent, node: str, now_s: float, reason: str = '') -> None:
        """Do what the table says. Raises OSError."""
        robot = self._robots[node]
        robot.phase, act = NEXT[robot.phase][event]
        if act in (Act.BEGIN, Act.EXTEND):
            robot.until_s = now_s + self._rules.after_s
            robot.reasons.append(reason)
        if act is Act.BEGIN:
            robot.bag = self._begin(node, reason)
        elif act is Act.END and robot.bag:
            bag, robot.bag = robot.bag, None
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
