# SPDX-License-Identifier: Apache-2.0
"""
Simulated rollouts: how often a canary is wrong, and how long it takes.

`rollout` sends a candidate through a plan, with the blocks and the wagers of the canary, looked at
after every episode; without guards, minimum times and missing ends. `lab` runs robots, verdicts
and their delays in virtual time against the canary's own record of a step. Pure functions of
random numbers that are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import heapq
import math

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.router.canary.evidence import stakes
from lerobot_serve.router.canary.guards import MIN_OUTCOMES
from lerobot_serve.router.canary.plan import CanaryPlan, Terms
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.canary.trial import BEGUN, EpisodeEvent, StepTrial

Numbers = NDArray[np.float64]
Marks = NDArray[np.bool_]
# a test that is common elsewhere: wrong in 5 % when looked at once
NAIVE_Z = 1.645


@dataclass(frozen=True, slots=True)
class SuccessRates:
    """True success rates; with a swing both go up and down together, once in `period` episodes."""

    champion: float
    candidate: float
    swing: float = 0.0
    period: int = 1

    def at(self, episodes: Numbers) -> tuple[Numbers, Numbers]:
        """Return both rates at these episodes."""
        shift = self.swing * np.sin(2 * math.pi * episodes / self.period)
        return (
            np.clip(self.champion + shift, 0.0, 1.0),
            np.clip(self.candidate + shift, 0.0, 1.0),
        )


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """How one rollout ended, and after how many episodes."""

    # PROMOTED, ROLLED_BACK or, when the episodes ran out, UNDECIDED
    state: CanaryPhase
    # of the candidate until the first promotion; None: never
    first_promotion: int | None
    candidate_episodes: int
    episodes: int


# at which episode the candidate passes, and at which it is shown to be worse; len(arms): never
ComparisonTest = Callable[[Marks, Marks, Terms, int], tuple[int, int]]


def sequential_test(arms: Marks, goods: Marks, terms: Terms, trials: int) -> tuple[int, int]:
    """The judge that the canary uses."""
    gains, ends = block_gains(arms, goods, terms.block_episodes)
    passes = first_reached(gains, terms.margin, terms.promotion_level)
    losses, narrow_ends = block_gains(arms, goods, 1)
    is_worse = first_reached(-losses, 0.0, terms.rollback_level(trials))
    return [*ends, len(arms)][passes], [*narrow_ends, len(arms)][is_worse]


def naive_z_test(arms: Marks, goods: Marks, terms: Terms, trials: int) -> tuple[int, int]:
    """A z-test that is looked at all the time, to show that this simulation finds fault."""
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
    """Return by how much the candidate is better in each block, and the last episode of each."""
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
    """Return the first block at which log e reaches the level; their number if none."""
    logs = np.log1p(np.array(stakes(margin))[:, None] * (gains + margin)).cumsum(axis=1)
    return _first(np.logaddexp.reduce(logs, axis=0) - math.log(len(logs)) >= level)


def simulate_rollout(
    draws: Numbers,
    rates: SuccessRates,
    plan: CanaryPlan,
    terms: Terms,
    judge: ComparisonTest = sequential_test,
) -> RolloutResult:
    """
    Return what becomes of one candidate.

    `draws` are uniform random numbers: for each episode one that places it and one that decides
    it.
    """
    limit = draws.shape[1]
    chances = rates.at(np.arange(limit))
    at, candidates, first = 0, 0, None
    for step in plan.trials:
        arms = draws[0, at:] < step.share_percent / 100
        goods = draws[1, at:] < np.where(arms, chances[1][at:], chances[0][at:])
        passes, is_worse = judge(arms, goods, terms, len(plan.trials))
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
    """Return where the first is True; the length if none is."""
    return int(marks.argmax()) if marks.any() else len(marks)


@dataclass(frozen=True, slots=True)
class ArmBehavior:
    """
    How the episodes of one arm go. `success` is the share that would end well if nothing came in
    between. Of the failures `aborted` are stopped by an operator; of all episodes `moved` leave
    the arm and end well elsewhere, and `unreported` get no verdict. Failures come in runs of
    `run` episodes of the arm.
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
    """Robots that do one episode after the other; `look_s` between two looks of the canary."""

    champion: ArmBehavior
    candidate: ArmBehavior
    robots: int = 10
    share_percent: int = 50
    episodes: int = 1200
    look_s: float = 60.0

    def run(self, rng: np.random.Generator, terms: Terms, trials: int = 1) -> CanaryPhase:
        """Return PROMOTED, ROLLED_BACK, or UNDECIDED when the episodes ran out."""
        trial, next_look_s, seen = StepTrial(terms.margin, terms.block_episodes), 0.0, []
        for time_s, event in self._events(rng):
            if time_s >= next_look_s:
                trial.take(seen)
                seen, next_look_s = [], time_s + self.look_s
                promotion, rollback, _ = trial.evidence
                if rollback >= terms.rollback_level(trials):
                    return CanaryPhase.ROLLED_BACK
                if promotion >= terms.promotion_level:
                    return CanaryPhase.PROMOTED
            seen.append(event)
        return CanaryPhase.UNDECIDED

    def _events(self, rng: np.random.Generator) -> Iterator[tuple[float, EpisodeEvent]]:
        arms = rng.random(self.episodes) < self.share_percent / 100
        luck = {arm: iter(_goods(rng, self._of(arm), self.episodes)) for arm in (True, False)}
        ways = rng.random((self.episodes, 2))
        # time, order, what is next: a robot that is free, or an event
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
            arm, name = bool(arms[number]), str(number)
            conduct, is_good = self._of(arm), bool(next(luck[arm]))
            yield time_s, EpisodeEvent(name, BEGUN, _NAMES[arm])
            end_s = time_s + (conduct.success_s if is_good else conduct.failure_s)
            heapq.heappush(heap, (end_s, number, None))
            what, delay_s = _end(conduct, is_good, *ways[number])
            end = EpisodeEvent(name, what, _NAMES[arm])
            heapq.heappush(heap, (end_s + delay_s, self.episodes + number, end))
            number += 1

    def _of(self, is_candidate: bool) -> ArmBehavior:
        return self.candidate if is_candidate else self.champion


_NAMES = {True: 'candidate', False: 'champion'}


def _goods(rng: np.random.Generator, conduct: ArmBehavior, count: int) -> Marks:
    runs = rng.random(count // conduct.run + 1) < conduct.success
    return np.repeat(runs, conduct.run)[:count]


def _end(conduct: ArmBehavior, is_good: bool, way: float, luck: float) -> tuple[str, float]:
    if way < conduct.moved:
        return 'moved', 0.0
    if way < conduct.moved + conduct.unreported:
        return 'unreported', 0.0
    if is_good:
        return 'success', conduct.success_verdict_s
    if luck < conduct.aborted:
        return 'aborted', 0.0
    return 'failure', conduct.failure_verdict_s
