# SPDX-License-Identifier: Apache-2.0
"""
Simulate rollouts: measure how often a canary decides wrongly, and after how many episodes.

`simulate_rollout` runs a candidate through a plan with the sequential test of the canary after
each episode, without guards, minimum times and missing outcomes. `SimulatedFleet` runs robots,
outcomes and their delays in virtual time against the StepTrial of the canary. Pure functions of
the given random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import heapq
import math

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.router.canary.evidence.sequential_test import stakes
from lerobot_serve.router.canary.evidence.trial import StepTrial
from lerobot_serve.router.canary.facts import BEGUN, EpisodeEvent
from lerobot_serve.router.canary.guards.rules import MIN_OUTCOMES
from lerobot_serve.router.canary.plan import CanaryPlan, Terms
from lerobot_serve.router.canary.states import CanaryPhase

Numbers = NDArray[np.float64]
Marks = NDArray[np.bool_]
# one-sided z-test at 5 %, valid for a single evaluation only
NAIVE_Z = 1.645


@dataclass(frozen=True, slots=True)
class SuccessRates:
    """True success rates; with `swing` both oscillate together, with a period in episodes."""

    champion: float
    candidate: float
    swing: float = 0.0
    period: int = 1

    def at(self, episodes: Numbers) -> tuple[Numbers, Numbers]:
        """Return the rates of champion and candidate at these episodes."""
        shift = self.swing * np.sin(2 * math.pi * episodes / self.period)
        return (
            np.clip(self.champion + shift, 0.0, 1.0),
            np.clip(self.candidate + shift, 0.0, 1.0),
        )


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """The end of one rollout, and its number of episodes."""

    # PROMOTED, ROLLED_BACK or, without a decision, UNDECIDED
    state: CanaryPhase
    # episodes of the candidate until the first promotion; None without one
    first_promotion: int | None
    candidate_episodes: int
    episodes: int


# returns the episode at which the candidate passes and the one at which it is shown to be worse;
# len(arms) for never
ComparisonTest = Callable[[Marks, Marks, Terms, int], tuple[int, int]]


def sequential_test(arms: Marks, goods: Marks, terms: Terms, trials: int) -> tuple[int, int]:
    """Apply the sequential test of the canary."""
    gains, ends = block_gains(arms, goods, terms.block_episodes)
    passes = first_reached(gains, terms.margin, terms.promotion_level)
    losses, narrow_ends = block_gains(arms, goods, 1)
    is_worse = first_reached(-losses, 0.0, terms.rollback_level(trials))
    return [*ends, len(arms)][passes], [*narrow_ends, len(arms)][is_worse]


def naive_z_test(arms: Marks, goods: Marks, terms: Terms, trials: int) -> tuple[int, int]:
    """Apply a z-test after each episode, to show that this simulation detects a wrong test."""
    totals = [np.maximum(np.cumsum(mine), 1) for mine in (~arms, arms)]
    p, q = (np.cumsum(mine & goods) / n for mine, n in zip((~arms, arms), totals, strict=True))
    error = np.sqrt(p * (1 - p) / totals[0] + q * (1 - q) / totals[1])
    fit = (np.minimum(*totals) >= MIN_OUTCOMES) & (error > 0)
    error = np.where(fit, error, 1.0)
    return (
        _first(fit & ((q - p + terms.margin) / error >= NAIVE_Z)),
        _first(fit & ((p - q) / error >= NAIVE_Z)),
    )


def block_gains(arms: Marks, goods: Marks, size: int) -> tuple[Numbers, list[int]]:
    """Return the gain of the candidate in each block, and the last episode of each block."""
    gains, ends = [], []
    counts, wins = [0, 0], [0, 0]
    for at, (arm, good) in enumerate(zip(arms.tolist(), goods.tolist(), strict=True)):
        counts[arm] += 1
        wins[arm] += good
        if counts[0] >= size and counts[1] >= size:
            gains.append(wins[1] / counts[1] - wins[0] / counts[0])
            ends.append(at)
            counts, wins = [0, 0], [0, 0]
    return np.array(gains), ends


def first_reached(gains: Numbers, margin: float, level: float) -> int:
    """Return the first block at which log e reaches the level; the number of blocks if none."""
    logs = np.log1p(np.array(stakes(margin))[:, None] * (gains + margin)).cumsum(axis=1)
    return _first(np.logaddexp.reduce(logs, axis=0) - math.log(len(logs)) >= level)


def simulate_rollout(
    draws: Numbers,
    rates: SuccessRates,
    plan: CanaryPlan,
    terms: Terms,
    test: ComparisonTest = sequential_test,
) -> RolloutResult:
    """
    Return the result of one rollout.

    `draws` are uniform random numbers, two for each episode: for its placement and its outcome.
    """
    limit = draws.shape[1]
    chances = rates.at(np.arange(limit, dtype=np.float64))
    at, candidates, first = 0, 0, None
    for step in plan.trials:
        arms = draws[0, at:] < step.share_percent / 100
        goods = draws[1, at:] < np.where(arms, chances[1][at:], chances[0][at:])
        passes, is_worse = test(arms, goods, terms, len(plan.trials))
        passes = 0 if first else passes
        promotes = max(passes, _first(_enough(arms, step.minimum_episodes)))
        used = min(promotes, is_worse, len(arms) - 1) + 1
        at, candidates = at + used, candidates + int(arms[:used].sum())
        if is_worse < used:
            return RolloutResult(CanaryPhase.ROLLED_BACK, first, candidates, at)
        if promotes >= used:
            return RolloutResult(CanaryPhase.UNDECIDED, first, candidates, limit)
        first = first or candidates
    return RolloutResult(CanaryPhase.PROMOTED, first, candidates, at)


def _enough(arms: Marks, minimum_episodes: int) -> Marks:
    least = max(minimum_episodes, MIN_OUTCOMES)
    return (np.cumsum(arms) >= least) & (np.cumsum(~arms) >= MIN_OUTCOMES)


def _first(marks: Marks) -> int:
    """Return the index of the first True; the length if there is none."""
    return int(marks.argmax()) if marks.any() else len(marks)


@dataclass(frozen=True, slots=True)
class ArmBehavior:
    """
    The behavior of the episodes of one arm.

    success     success rate of episodes that are neither moved nor unreported
    aborted     share of failures that an operator aborts
    moved       share of episodes that move to the other arm
    unreported  share of episodes without an outcome
    run         number of consecutive episodes with the same result
    """

    success: float
    aborted: float = 0.0
    moved: float = 0.0
    unreported: float = 0.0
    run: int = 1
    success_s: float = 30.0
    failure_s: float = 30.0
    success_verdict_s: float = 0.0
    failure_verdict_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """Robots that run episodes back to back; the canary is updated every `check_period_s`."""

    champion: ArmBehavior
    candidate: ArmBehavior
    robots: int = 10
    share_percent: int = 50
    episodes: int = 1200
    check_period_s: float = 60.0

    def run(self, rng: np.random.Generator, terms: Terms, trials: int = 1) -> CanaryPhase:
        """Return PROMOTED, ROLLED_BACK or, without a decision, UNDECIDED."""
        trial, next_check_s = StepTrial(terms.margin, terms.block_episodes), 0.0
        waiting: list[EpisodeEvent] = []
        for time_s, event in self._events(rng):
            if time_s >= next_check_s:
                trial.take(waiting)
                waiting, next_check_s = [], time_s + self.check_period_s
                promotion, rollback, _ = trial.evidence
                if rollback >= terms.rollback_level(trials):
                    return CanaryPhase.ROLLED_BACK
                if promotion >= terms.promotion_level:
                    return CanaryPhase.PROMOTED
            waiting.append(event)
        return CanaryPhase.UNDECIDED

    def _events(self, rng: np.random.Generator) -> Iterator[tuple[float, EpisodeEvent]]:
        arms = (rng.random(self.episodes) < self.share_percent / 100).tolist()
        successes = {
            arm: iter(_draw_successes(rng, self._of(arm), self.episodes).tolist())
            for arm in (True, False)
        }
        draws = rng.random((self.episodes, 2)).tolist()
        # time, order, event; None: a robot starts an episode
        heap: list[tuple[float, int, EpisodeEvent | None]] = [
            (float(start), -1 - robot, None)
            for robot, start in enumerate(rng.random(self.robots) * 30.0)
        ]
        heapq.heapify(heap)
        number = 0
        while heap:
            time_s, _, event = heapq.heappop(heap)
            if event is not None:
                yield time_s, event
                continue
            if number == self.episodes:
                continue
            arm, name = arms[number], str(number)
            behavior, is_good = self._of(arm), next(successes[arm])
            yield time_s, EpisodeEvent(name, BEGUN, _NAMES[arm])
            end_s = time_s + (behavior.success_s if is_good else behavior.failure_s)
            heapq.heappush(heap, (end_s, number, None))
            what, delay_s = _end(behavior, is_good, *draws[number])
            end = EpisodeEvent(name, what, _NAMES[arm])
            heapq.heappush(heap, (end_s + delay_s, self.episodes + number, end))
            number += 1

    def _of(self, is_candidate: bool) -> ArmBehavior:
        return self.candidate if is_candidate else self.champion


_NAMES = {True: 'candidate', False: 'champion'}


def _draw_successes(rng: np.random.Generator, behavior: ArmBehavior, count: int) -> Marks:
    runs = rng.random(count // behavior.run + 1) < behavior.success
    return np.repeat(runs, behavior.run)[:count]


def _end(
    behavior: ArmBehavior, is_good: bool, draw: float, abort_draw: float
) -> tuple[str, float]:
    """Return the end of an episode and the delay of its report."""
    if draw < behavior.moved:
        return 'moved', 0.0
    if draw < behavior.moved + behavior.unreported:
        return 'unreported', 0.0
    if is_good:
        return 'success', behavior.success_verdict_s
    if abort_draw < behavior.aborted:
        return 'aborted', 0.0
    return 'failure', behavior.failure_verdict_s
