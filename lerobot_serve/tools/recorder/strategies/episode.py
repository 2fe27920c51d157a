# SPDX-License-Identifier: Apache-2.0
"""One episode of one robot while its bag is written. The writing thread."""

from __future__ import annotations

from lerobot_serve.contract.records import EdgeState, ExecutedAction
from lerobot_serve.tools.bags.message import EXECUTED
from lerobot_serve.tools.bags.recording.writer import BagWriter
from lerobot_serve.tools.recorder.storage.intervals import EpisodeSummary
from lerobot_serve.tools.recorder.strategies.episode_states import Event, NEXT, Phase, RUNNING
from lerobot_serve.tools.recorder.strategies.strategy_writer import SortedMessage

# how long messages of the last control steps may be on their way
SETTLING_S = 0.5


class Episode:
    """`on` moves it through the table; `poll` sends the events of time."""

    def __init__(self, bag: BagWriter, summary: EpisodeSummary, *, outcome_wait_s: float) -> None:
        self.bag, self.summary = bag, summary
        self.phase = Phase.RUNNING
        self._outcome_wait_s = outcome_wait_s
        self._ended_s = self._judged_s = 0.0

    @property
    def episode_id(self) -> str:
        return self.summary.episode_id

    @property
    def is_running(self) -> bool:
        """Return whether the robot runs it."""
        return self.phase in RUNNING

    def on(self, event: Event, now_s: float) -> None:
        """Count what happened."""
        was_running, before = self.is_running, self.phase
        self.phase = NEXT[self.phase][event]
        if was_running and not self.is_running:
            self._ended_s = now_s
            self.summary.ended = self.summary.ended or event.value
        if event is Event.OUTCOME and self.phase is not before:
            self._judged_s = now_s

    def on_outcome(self, outcome: str, now_s: float) -> None:
        """Count its outcome; the first one counts."""
        self.summary.outcome = self.summary.outcome or outcome
        self.on(Event.OUTCOME, now_s)

    def poll(self, now_s: float) -> None:
        """Count what is due."""
        if now_s - max(self._ended_s, self._judged_s) >= SETTLING_S:
            self.on(Event.SETTLED, now_s)
        if not self.is_running and now_s - self._ended_s >= self._outcome_wait_s:
            self.on(Event.OUTCOME_LATE, now_s)

    def takes(
        self, message: SortedMessage, report: ExecutedAction | EdgeState | None, now_s: float
    ) -> bool:
        """Return whether its bag gets a message that is no outcome."""
        if not message.is_of(self.summary.node):
            return False
        if message.message.type == EXECUTED:
            return report is not None and report.episode_id == self.episode_id
        return self.is_running or now_s - self._ended_s < SETTLING_S
