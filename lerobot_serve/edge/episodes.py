"""
One run of the action RunEpisode: when it ends, and what is told of it. Plain; executor thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lerobot_serve.edge.controller import Controller
from lerobot_serve.edge.states import State


class Outcome(IntEnum):
    """RunEpisode's outcome."""

    TIMEOUT = 1
    CANCELLED = 2
    DEAD = 3
    STOPPED = 4
    SUCCESS = 5
    FAILURE = 6
    REFUSED = 7


# EpisodeOutcome.outcome -> what the run ends with; an aborted one counts as a failure
JUDGED = {1: Outcome.SUCCESS, 2: Outcome.FAILURE, 3: Outcome.FAILURE}


@dataclass(slots=True)
class Run:
    """What was counted when it began, and what others said of it since."""

    started_ns: int
    max_duration_s: float
    episode_id: str
    actions_executed: int
    stalls: int
    cage_trips: int
    verdict: tuple[Outcome, str] | None = None

    def end(self, outcome: Outcome, text: str) -> None:
        """Note how it ends; the first to say so counts. Any thread."""
        if self.verdict is None:
            self.verdict = outcome, text

    def elapsed_s(self, now_ns: int) -> float:
        return (now_ns - self.started_ns) / 1e9

    def check(
        self, now_ns: int, *, state: State, reason: str, latched: bool, stopped: bool
    ) -> tuple[Outcome, str] | None:
        """Return how it ended, None while it goes on."""
        if state == State.DEAD:
            self.end(Outcome.DEAD, reason)
        if latched:
            self.end(Outcome.STOPPED, 'the safety cage has stopped the robot')
        if stopped:
            self.end(Outcome.STOPPED, 'the stop service was called')
        if self.max_duration_s and self.elapsed_s(now_ns) >= self.max_duration_s:
            self.end(Outcome.TIMEOUT, f'{self.max_duration_s:g} s have passed')
        return self.verdict


def begin(controller: Controller, now_ns: int, max_duration_s: float, episode_id: str) -> Run:
    """Return a run that counts from now."""
    controller.oldest_age_ns = 0
    return Run(
        now_ns,
        max_duration_s,
        episode_id,
        controller.actions_executed,
        controller.stalls,
        controller.cage_trips,
    )
