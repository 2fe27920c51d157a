# SPDX-License-Identifier: Apache-2.0
"""
One run of the action RunEpisode: counters at its start, and its outcome. Plain; executor thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.session.connection import ConnectionState


class RunOutcome(IntEnum):
    """RunEpisode's outcome."""

    TIMEOUT = 1
    CANCELLED = 2
    DEAD = 3
    STOPPED = 4
    SUCCESS = 5
    FAILURE = 6
    REFUSED = 7


# EpisodeOutcome.outcome -> outcome of the run; an aborted one counts as a failure
REPORTED_OUTCOMES = {1: RunOutcome.SUCCESS, 2: RunOutcome.FAILURE, 3: RunOutcome.FAILURE}


@dataclass(slots=True)
class ActiveEpisode:
    """Counters at the start of the run, and its outcome once known."""

    started_ns: int
    max_duration_s: float
    episode_id: str
    actions_executed: int
    stalls: int
    cage_trips: int
    verdict: tuple[RunOutcome, str] | None = None

    def end(self, outcome: RunOutcome, text: str) -> None:
        """Set the outcome; the first one counts. Any thread."""
        if self.verdict is None:
            self.verdict = outcome, text

    def elapsed_s(self, now_ns: int) -> float:
        return (now_ns - self.started_ns) / 1e9

    def check(
        self, now_ns: int, *, state: ConnectionState, reason: str, latched: bool, stopped: bool
    ) -> tuple[RunOutcome, str] | None:
        """Return the outcome, None while it runs."""
        if state == ConnectionState.DEAD:
            self.end(RunOutcome.DEAD, reason)
        if latched:
            self.end(RunOutcome.STOPPED, 'Safety cage latched')
        if stopped:
            self.end(RunOutcome.STOPPED, 'Stop service called')
        if self.max_duration_s and self.elapsed_s(now_ns) >= self.max_duration_s:
            self.end(RunOutcome.TIMEOUT, f'{self.max_duration_s:g} s elapsed')
        return self.verdict


def begin_run(
    controller: Controller, now_ns: int, max_duration_s: float, episode_id: str
) -> ActiveEpisode:
    """Start a run; its counters start now."""
    controller.oldest_age_ns = 0
    return ActiveEpisode(
        now_ns,
        max_duration_s,
        episode_id,
        controller.actions_executed,
        controller.stalls,
        controller.cage_trips,
    )
