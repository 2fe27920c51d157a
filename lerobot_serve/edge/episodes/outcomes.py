# SPDX-License-Identifier: Apache-2.0
"""
Outcomes of the robot's recent episodes; the first report of an episode counts. Any thread.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
import threading

from lerobot_serve.edge.episodes.active_episode import RunOutcome

EPISODES_KEPT = 64
ABORTED = 'aborted'
# EpisodeOutcome.outcome -> its word
OUTCOME_NAMES = {1: 'success', 2: 'failure', 3: ABORTED}
# any other end of a run counts as aborted
RUN_OUTCOME_NAMES = {RunOutcome.SUCCESS: 'success', RunOutcome.FAILURE: 'failure'}


@dataclass(slots=True)
class EpisodeRecord:
    """Slot and policy of the last reply, and the outcome; empty while unknown."""

    slot: str = ''
    policy: str = ''
    outcome: str = ''


class OutcomeRegistry:
    """Keeps the latest episodes."""

    def __init__(self) -> None:
        self._episodes: OrderedDict[str, EpisodeRecord] = OrderedDict()
        self._lock = threading.Lock()

    def began(self, episode_id: str) -> None:
        """Record that an episode of this robot sent a request."""
        with self._lock:
            self._episode(episode_id)

    def answered(self, episode_id: str, slot: str, policy: str) -> None:
        """Record the slot and policy of a reply."""
        with self._lock:
            episode = self._episode(episode_id)
            episode.slot, episode.policy = slot, policy

    def judged(self, episode_id: str, outcome: int) -> EpisodeRecord | None:
        """Record a reported outcome; None for another robot's episode, or if already known."""
        with self._lock:
            if episode_id not in self._episodes:
                return None
            return self._end(self._episodes[episode_id], OUTCOME_NAMES.get(outcome, ''))

    def finished(self, episode_id: str, outcome: RunOutcome) -> EpisodeRecord | None:
        """Record the end of a run; None if the outcome was already known."""
        with self._lock:
            return self._end(self._episode(episode_id), RUN_OUTCOME_NAMES.get(outcome, ABORTED))

    def _episode(self, episode_id: str) -> EpisodeRecord:
        episode = self._episodes.setdefault(episode_id, EpisodeRecord())
        if len(self._episodes) > EPISODES_KEPT:
            self._episodes.popitem(last=False)
        return episode

    @staticmethod
    def _end(episode: EpisodeRecord, outcome: str) -> EpisodeRecord | None:
        if episode.outcome or not outcome:
            return None
        episode.outcome = outcome
        return episode
