# SPDX-License-Identifier: Apache-2.0
"""
Outcomes of episodes: their words in traces, and a registry of recent ones, in which the first
report counts. Any thread.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
import threading
from typing import NamedTuple

from lerobot_serve.contract.records import RunEpisodeResult

EPISODES_KEPT = 64


RunOutcome = RunEpisodeResult.Outcome


class ReportedOutcome(NamedTuple):
    """The word of an outcome in traces, and the outcome of the run that it ends."""

    word: str
    run: RunOutcome


# EpisodeOutcome.outcome -> its meaning; an aborted one is a failure of the run
REPORTED_OUTCOMES = {
    1: ReportedOutcome('success', RunOutcome.SUCCESS),
    2: ReportedOutcome('failure', RunOutcome.FAILURE),
    3: ReportedOutcome('aborted', RunOutcome.FAILURE),
}


def run_outcome_word(outcome: RunOutcome) -> str:
    """Return the word of a run's outcome; all but success and failure are aborted."""
    has_word = outcome in (RunOutcome.SUCCESS, RunOutcome.FAILURE)
    return outcome.name.lower() if has_word else 'aborted'


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

    def record_request(self, episode_id: str) -> None:
        """Record that an episode of this robot sent a request."""
        with self._lock:
            self._episode(episode_id)

    def record_reply(self, episode_id: str, slot: str, policy: str) -> None:
        """Record the slot and policy of a reply."""
        with self._lock:
            episode = self._episode(episode_id)
            episode.slot, episode.policy = slot, policy

    def record_outcome(self, episode_id: str, outcome: int) -> EpisodeRecord | None:
        """Record a reported outcome; None for another robot's episode, or if already known."""
        with self._lock:
            if episode_id not in self._episodes:
                return None
            known = REPORTED_OUTCOMES.get(outcome)
            return self._end(self._episodes[episode_id], known.word if known else '')

    def record_run_end(self, episode_id: str, outcome: RunOutcome) -> EpisodeRecord | None:
        """Record the end of a run; None if the outcome was already known."""
        with self._lock:
            return self._end(self._episode(episode_id), run_outcome_word(outcome))

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
