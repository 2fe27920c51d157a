"""
How the episodes of this robot ended, as far as anybody said so: the first to say it counts.

Any thread.
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
# a run that ended in another way has no verdict
RUN_OUTCOME_NAMES = {RunOutcome.SUCCESS: 'success', RunOutcome.FAILURE: 'failure'}


@dataclass(slots=True)
class EpisodeRecord:
    """Which policy answered last, and how it ended; empty while nobody said."""

    slot: str = ''
    policy: str = ''
    outcome: str = ''


class OutcomeRegistry:
    """Remembers the last episodes."""

    def __init__(self) -> None:
        self._episodes: OrderedDict[str, EpisodeRecord] = OrderedDict()
        self._lock = threading.Lock()

    def began(self, episode_id: str) -> None:
        """An episode of this robot asks."""
        with self._lock:
            self._episode(episode_id)

    def answered(self, episode_id: str, slot: str, policy: str) -> None:
        """A policy answered it."""
        with self._lock:
            episode = self._episode(episode_id)
            episode.slot, episode.policy = slot, policy

    def judged(self, episode_id: str, outcome: int) -> EpisodeRecord | None:
        """Return the episode that somebody judged; None for another robot's, or no news."""
        with self._lock:
            if episode_id not in self._episodes:
                return None
            return self._end(self._episodes[episode_id], OUTCOME_NAMES.get(outcome, ''))

    def finished(self, episode_id: str, outcome: RunOutcome) -> EpisodeRecord | None:
        """Return the episode whose run is over; None where that is no news."""
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
