# SPDX-License-Identifier: Apache-2.0
"""
One episode of one robot while its bag is written: a table says when it ends. The writing thread.

An episode that ended waits for its outcome, and for messages of its last control steps that are
still on their way.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from lerobot_serve.contract.records import EdgeState, ExecutedAction
from lerobot_serve.experience.recorded_episode import EpisodeSummary
from lerobot_serve.tools.bags.message import EXECUTED
from lerobot_serve.tools.bags.recording.writer import BagWriter
from lerobot_serve.tools.recorder.strategies.strategy_writer import MemoryRing, SortedMessage

# how far the messages of two topics may arrive out of order
KEPT_S = 0.5
# no input of a robot file may be older
OLDEST_S = 60.0
LIMIT_BYTES = 64 << 20


class RecentInputs:
    """
    The messages of the last KEPT_S, and the newest one of each topic, for the begin of the next
    episode: its first control step acts on messages that came before it.
    """

    def __init__(self) -> None:
        self._recent = MemoryRing(KEPT_S, LIMIT_BYTES)
        self._newest: dict[str, tuple[float, SortedMessage]] = {}

    def add(self, message: SortedMessage, now_s: float) -> None:
        """Keep a message."""
        self._recent.add(message, now_s)
        self._newest[message.message.topic] = now_s, message

    def messages(self, now_s: float) -> Iterator[SortedMessage]:
        """Yield what is kept, each message once, approximately in time order."""
        # by identity: messages of equal content are different ones
        recent = {id(message) for message in self._recent}
        for at_s, message in sorted(self._newest.values(), key=lambda kept: kept[0]):
            if id(message) not in recent and now_s - at_s <= OLDEST_S:
                yield message
        yield from self._recent


class EpisodePhase(Enum):
    """What is known of an episode; `JUDGED` and `COMPLETE` have an outcome."""

    RUNNING = 'running'
    JUDGED = 'judged'
    ENDED = 'ended'
    COMPLETE = 'complete'
    CLOSED = 'closed'


class EpisodeEvent(Enum):
    """What happened to an episode."""

    # the robot runs it
    RUNS = 'runs'
    # the robot runs another one, or none
    RUNS_NOT = 'not running'
    OUTCOME = 'outcome'
    # nothing of its last control steps is on its way any more
    SETTLED = 'settled'
    # an outcome would have come by now
    OUTCOME_LATE = 'outcome late'
    # the robot was not heard for a while
    GONE = 'gone'


P, E = EpisodePhase, EpisodeEvent
# an episode stays in its phase but for these events
CHANGES = {
    P.RUNNING: {E.RUNS_NOT: P.ENDED, E.OUTCOME: P.JUDGED, E.GONE: P.CLOSED},
    P.JUDGED: {E.RUNS_NOT: P.COMPLETE, E.GONE: P.CLOSED},
    # an id is not used twice: RUNS is a late report
    P.ENDED: {E.OUTCOME: P.COMPLETE, E.OUTCOME_LATE: P.CLOSED, E.GONE: P.CLOSED},
    P.COMPLETE: {E.SETTLED: P.CLOSED, E.OUTCOME_LATE: P.CLOSED, E.GONE: P.CLOSED},
    P.CLOSED: {},
}
NEXT: dict[EpisodePhase, dict[EpisodeEvent, EpisodePhase]] = {
    phase: dict.fromkeys(EpisodeEvent, phase) | changes for phase, changes in CHANGES.items()
}
RUNNING = (EpisodePhase.RUNNING, EpisodePhase.JUDGED)


# how long messages of the last control steps may be on their way
SETTLING_S = 0.5


class Episode:
    """`on` moves it through the table; `poll` sends the events of time."""

    def __init__(self, bag: BagWriter, summary: EpisodeSummary, *, outcome_wait_s: float) -> None:
        self.bag, self.summary = bag, summary
        self.phase = EpisodePhase.RUNNING
        self._outcome_wait_s = outcome_wait_s
        self._ended_s = self._judged_s = 0.0

    @property
    def episode_id(self) -> str:
        return self.summary.episode_id

    @property
    def is_running(self) -> bool:
        """Return whether the robot runs it."""
        return self.phase in RUNNING

    def on(self, event: EpisodeEvent, now_s: float) -> None:
        """Count what happened."""
        was_running, before = self.is_running, self.phase
        self.phase = NEXT[self.phase][event]
        if was_running and not self.is_running:
            self._ended_s = now_s
            self.summary.ended = self.summary.ended or event.value
        if event is EpisodeEvent.OUTCOME and self.phase is not before:
            self._judged_s = now_s

    def on_outcome(self, outcome: str, now_s: float) -> None:
        """Count its outcome; the first one counts."""
        self.summary.outcome = self.summary.outcome or outcome
        self.on(EpisodeEvent.OUTCOME, now_s)

    def poll(self, now_s: float) -> None:
        """Count what is due."""
        if now_s - max(self._ended_s, self._judged_s) >= SETTLING_S:
            self.on(EpisodeEvent.SETTLED, now_s)
        if not self.is_running and now_s - self._ended_s >= self._outcome_wait_s:
            self.on(EpisodeEvent.OUTCOME_LATE, now_s)

    def takes(
        self, message: SortedMessage, report: ExecutedAction | EdgeState | None, now_s: float
    ) -> bool:
        """Return whether its bag gets a message that is not an outcome."""
        if not message.is_of(self.summary.node):
            return False
        if message.message.type == EXECUTED:
            return report is not None and report.episode_id == self.episode_id
        return self.is_running or now_s - self._ended_s < SETTLING_S
