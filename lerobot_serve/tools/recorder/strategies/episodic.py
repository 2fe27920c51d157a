# SPDX-License-Identifier: Apache-2.0
"""
Records one bag for each episode of each robot; for the strategy dagger, of those that their robot
ended only the ones stay in which a person commanded it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import EdgeState, EpisodeOutcome, ExecutedAction
from lerobot_serve.experience.recorded_episode import EpisodeSummary, word_of, write_summary
from lerobot_serve.tools.bags.message import BagError, OUTCOME
from lerobot_serve.tools.bags.recording.writer import BagWriter
from lerobot_serve.tools.recorder.announcer import WholeBags
from lerobot_serve.tools.recorder.strategies.episode import (
    Episode,
    EpisodeEvent,
    EpisodePhase,
    RecentInputs,
)
from lerobot_serve.tools.recorder.strategies.strategy_writer import (
    read_report,
    ReportOrder,
    SortedMessage,
    StrategyWriter,
)

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
