# SPDX-License-Identifier: Apache-2.0
"""
Record one bag for each episode of each robot; for the strategy dagger, of those that their robot
ended only the ones stay in which a person commanded it. The writing thread.

A table says when an episode ends. One that ended waits for its outcome, and for messages of its
last control steps that are still on their way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import EdgeState, EpisodeOutcome, ExecutedAction
from lerobot_serve.experience.recorded_episode import EpisodeSummary, word_of, write_summary
from lerobot_serve.tools.bags.message import BagError, EXECUTED, OUTCOME
from lerobot_serve.tools.bags.writer import BagWriter
from lerobot_serve.tools.recorder.announcer import WholeBags
from lerobot_serve.tools.recorder.strategy_writer import (
    MemoryRing,
    read_report,
    ReportOrder,
    SortedMessage,
    StrategyWriter,
)

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


# ids that ended: a late report does not begin them again
ENDED_IDS = 64
STOPPED = 'recorder stopped'


@dataclass(slots=True)
class _Robot:
    """What is known of the robot of one edge controller."""

    heard_s: float
    episodes: list[Episode] = field(default_factory=list)
    recent: RecentInputs = field(default_factory=RecentInputs)
    order: ReportOrder = field(default_factory=ReportOrder)
    ended: deque[str] = field(default_factory=lambda: deque(maxlen=ENDED_IDS))


class EpisodicWriter(StrategyWriter):
    """See the module."""

    def __init__(self, *common: Any, **options: Any) -> None:
        """Raises BagError."""
        super().__init__(*common, **options)
        self._robots: dict[str, _Robot] = {}
        try:
            self.whole_bags = WholeBags(self.folder.root)
        except OSError as error:
            self.folder.close()
            why = error.strerror or error
            raise BagError(
                f'{self.folder.root} cannot be read: {why}; name another folder'
            ) from error
        self.discarded = 0

    def record(self, message: SortedMessage) -> None:
        now_s = self.clock()
        report = read_report(message.message)
        if report:
            self._on_report(message.message.node, report, message, now_s)
        if message.message.type == OUTCOME:
            self._on_outcome(message, now_s)
            return
        for node in self._robots if message.owners is None else message.owners:
            if robot := self._robots.get(node):
                self._write(robot, message, report, now_s)

    def poll(self) -> None:
        now_s = self.clock()
        for robot in self._robots.values():
            for episode in robot.episodes:
                episode.poll(now_s)
                if now_s - robot.heard_s >= self.rules.gone_after:
                    episode.on(EpisodeEvent.GONE, now_s)
            for episode in [each for each in robot.episodes if each.phase is EpisodePhase.CLOSED]:
                robot.episodes.remove(episode)
                self._finish(episode)

    def end(self) -> None:
        for robot in self._robots.values():
            while robot.episodes:
                episode = robot.episodes.pop(0)
                if episode.is_running:
                    episode.summary.ended = STOPPED
                self._finish(episode)

    def open_bags(self) -> list[BagWriter]:
        return [each.bag for robot in self._robots.values() for each in robot.episodes]

    def _on_report(
        self,
        node: str,
        report: ExecutedAction | EdgeState,
        message: SortedMessage,
        now_s: float,
    ) -> None:
        """Begin and end episodes as a robot says."""
        robot = self._robots.setdefault(node, _Robot(now_s))
        robot.heard_s = now_s
        # an action that a newer state has overtaken is of an episode all the same
        episodes = robot.episodes if robot.order.is_news(report.stamp.ns) else []
        for episode in episodes:
            runs = report.episode_id == episode.episode_id
            if not runs and episode.is_running:
                robot.ended.append(episode.episode_id)
            episode.on(EpisodeEvent.RUNS if runs else EpisodeEvent.RUNS_NOT, now_s)
        known = {each.episode_id for each in robot.episodes} | {*robot.ended, ''}
        # a state names the next episode before it runs
        if isinstance(report, ExecutedAction) and report.episode_id not in known:
            robot.episodes.append(self._begin(node, robot, report, message, now_s))

    def _begin(
        self,
        node: str,
        robot: _Robot,
        report: ExecutedAction | EdgeState,
        message: SortedMessage,
        now_s: float,
    ) -> Episode:
        """Begin the bag of an episode with what came before its first message."""
        client_id, episode_id = report.client_id or node, report.episode_id
        inputs = list(robot.recent.messages(now_s))
        stamps = [each.message.stamp_ns for each in (*inputs, message)]
        bag = self.folder.begin(client_id, episode_id, begin_ns=message.message.stamp_ns)
        summary = EpisodeSummary(robot=client_id, node=node, episode_id=episode_id, outcome='')
        episode = Episode(bag, summary, outcome_wait_s=self.rules.outcome_wait)
        try:
            # a recorder that is killed leaves what its bag is
            write_summary(bag.current_folder, summary)
            self.write_latched(bag, node, min(stamps))
            for each in inputs:
                self.write_into(bag, each)
        except OSError:
            bag.abort()
            raise
        return episode

    def _write(
        self,
        robot: _Robot,
        message: SortedMessage,
        report: ExecutedAction | EdgeState | None,
        now_s: float,
    ) -> None:
        for episode in robot.episodes:
            if episode.takes(message, report, now_s):
                self.write_into(episode.bag, message)
                if isinstance(report, ExecutedAction):
                    episode.summary.add(report)
        if message.owners and not report:
            robot.recent.add(message, now_s)

    def _on_outcome(self, message: SortedMessage, now_s: float) -> None:
        try:
            outcome: EpisodeOutcome = message.message.record()
        except Malformed:
            return
        for node, robot in self._robots.items():
            for episode in robot.episodes:
                if message.is_of(node) and outcome.episode_id == episode.episode_id:
                    self.write_into(episode.bag, message)
                    episode.on_outcome(word_of(outcome.outcome), now_s)

    def _finish(self, episode: Episode) -> None:
        """Complete the bag of an episode, or remove it. Raises OSError."""
        # an episode that was cut may go on, with a person, in another bag
        is_whole = episode.summary.ended == EpisodeEvent.RUNS_NOT.value
        if is_whole and self.rules.only_with_person and not episode.summary.has_person:
            self.folder.discard(episode.bag)
            self.discarded += 1
            return
        try:
            write_summary(episode.bag.current_folder, episode.summary)
            self.finish(episode.bag)
        except OSError:
            episode.bag.abort()
            raise
        self.whole_bags.put(episode.bag.folder)
