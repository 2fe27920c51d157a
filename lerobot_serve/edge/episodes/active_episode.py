# SPDX-License-Identifier: Apache-2.0
"""
One run of the action RunEpisode: counters at its start, and its outcome. Plain; executor thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.episodes.outcomes import RunOutcome
from lerobot_serve.edge.session.connection import ConnectionState


@dataclass(slots=True)
class ActiveEpisode:
    """Counters at the start of the run, and its outcome once known."""

    started_ns: int
    max_duration_s: float
    episode_id: str
    actions_executed: int
    stalls: int
    cage_trips: int
    chunks_accepted: int = 0
    result: tuple[RunOutcome, str] | None = None

    def end(self, outcome: RunOutcome, text: str) -> None:
        """Set the outcome; the first one counts. Any thread."""
        if self.result is None:
            self.result = outcome, text

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
        return self.result


def begin_run(
    controller: Controller,
    now_ns: int,
    max_duration_s: float,
    episode_id: str,
    chunks_accepted: int = 0,
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
        chunks_accepted,
    )
