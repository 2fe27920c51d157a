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

from lerobot_serve.router.canary.evidence.failure_runs import PRIOR_FAILURES
from lerobot_serve.router.canary.evidence.sequential_test import stakes
from lerobot_serve.router.canary.evidence.trial import StepTrial
from lerobot_serve.router.canary.facts import ARMS, BEGUN, EpisodeEvent
from lerobot_serve.router.canary.guards.rules import MIN_OUTCOMES
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.parameters import RouterParameters

Numbers = NDArray[np.float64]
Marks = NDArray[np.bool_]
# one-sided z-test at 5 %, valid for a single evaluation only
NAIVE_Z = 1.645
# of the fleet of simulate_rollout
ROBOTS = 10


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
ComparisonTest = Callable[[Marks, Marks, RouterParameters, int], tuple[int, int]]


def sequential_test(
    arms: Marks, goods: Marks, rules: RouterParameters, trials: int, robots: int = ROBOTS
) -> tuple[int, int]:
    """Apply the sequential test of the canary; the robots take turns."""
    size = rules.canary_block_episodes
    promotion = evidence(arms, goods, size, rules.canary_margin, sign=1) / factors(
        arms, goods, size, robots
    )
    rollback = evidence(arms, goods, 1, 0.0, sign=-1) / factors(arms, goods, 1, robots)
    return (
        _first(promotion >= rules.promotion_level),
        _first(rollback >= rules.rollback_level(trials)),
    )


def naive_z_test(
    arms: Marks, goods: Marks, rules: RouterParameters, trials: int
) -> tuple[int, int]:
    """Apply a z-test after each episode, to show that this simulation detects a wrong test."""
    totals = [np.maximum(np.cumsum(mine), 1) for mine in (~arms, arms)]
    p, q = (np.cumsum(mine & goods) / n for mine, n in zip((~arms, arms), totals, strict=True))
    error = np.sqrt(p * (1 - p) / totals[0] + q * (1 - q) / totals[1])
    fit = (np.minimum(*totals) >= MIN_OUTCOMES) & (error > 0)
    error = np.where(fit, error, 1.0)
    return (
        _first(fit & ((q - p + rules.canary_margin) / error >= NAIVE_Z)),
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


def evidence(arms: Marks, goods: Marks, size: int, margin: float, *, sign: int) -> Numbers:
    """Return the largest log e so far after each episode, for blocks of a size."""
    gains, ends = block_gains(arms, goods, size)
    logs = np.log1p(np.array(stakes(margin))[:, None] * (sign * gains + margin)).cumsum(axis=1)
    best = np.zeros(len(arms))
    best[ends] = np.logaddexp.reduce(logs, axis=0) - math.log(len(logs))
    largest: Numbers = np.maximum.accumulate(best)
    return largest


def factors(arms: Marks, goods: Marks, assumed_run: int, robots: int = ROBOTS) -> Numbers:
    """Return the factor of runs after each episode; see evidence/failure_runs.py."""
    counts = [np.cumsum(mine, dtype=np.float64) for mine in (~arms, arms)]
    champion, candidate = (
        _arm_factors(mine, goods, count, assumed, robots)
        for mine, count, assumed in zip((~arms, arms), counts, (1, assumed_run), strict=True)
    )
    its, own = counts[0] + 1, counts[1] + 1
    common: Numbers = (candidate * its + champion * own) / (its + own)
    return common


def _arm_factors(
    mine: Marks, goods: Marks, counts: Numbers, assumed_run: int, robots: int
) -> Numbers:
    own = np.flatnonzero(mine)
    # by robot; of each robot in its order
    own = own[np.argsort(own % robots, kind='stable')]
    number, robot = np.arange(len(own)), own % robots
    is_first = np.diff(robot, prepend=-1) != 0
    ended = np.where(goods[own], number, np.where(is_first, number - 1, -1))
    run = number - np.maximum.accumulate(ended)
    squares = np.zeros(len(mine))
    squares[own] = np.where(run > 0, 2 * run - 1, 0)
    failures = np.cumsum(mine & ~goods)
    mean_run = (np.cumsum(squares) + PRIOR_FAILURES * assumed_run) / (failures + PRIOR_FAILURES)
    share = (failures + 1) / (counts + 2)
    limited: Numbers = np.maximum(1.0, mean_run * (1 - share) / (1 + share))
    return limited


def simulate_rollout(
    draws: Numbers,
    rates: SuccessRates,
    plan: CanaryPlan,
    rules: RouterParameters,
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
        passes, is_worse = test(arms, goods, rules, len(plan.trials))
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
    robot_run   the same, of the episodes of one robot
    slip        number of consecutive episodes of a robot that fail for one more reason, a camera
                that slipped; `slipped` is their share
    """

    success: float
    aborted: float = 0.0
    moved: float = 0.0
    unreported: float = 0.0
    run: int = 1
    robot_run: int = 1
    slip: int = 0
    slipped: float = 0.0
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

    def run(
        self, rng: np.random.Generator, rules: RouterParameters, trials: int = 1
    ) -> RolloutResult:
        """Return the result of one step: the first promotion or the rollback ends it."""
        trial, next_check_s = StepTrial(rules.canary_margin, rules.canary_block_episodes), 0.0
        waiting: list[EpisodeEvent] = []
        for time_s, event in self._events(rng):
            if time_s >= next_check_s:
                trial.take(waiting)
                waiting, next_check_s = [], time_s + self.check_period_s
                promotion, rollback, _ = trial.evidence
                if rollback >= rules.rollback_level(trials):
                    return _result(CanaryPhase.ROLLED_BACK, trial)
                if promotion >= rules.promotion_level:
                    return _result(CanaryPhase.PROMOTED, trial)
            waiting.append(event)
        return _result(CanaryPhase.UNDECIDED, trial)

    def _events(self, rng: np.random.Generator) -> Iterator[tuple[float, EpisodeEvent]]:
        arms = (rng.random(self.episodes) < self.share_percent / 100).tolist()
        successes = {arm: self._successes(rng, self._of(arm)) for arm in (True, False)}
        draws = rng.random((self.episodes, 2)).tolist()
        # time, order, event; a number: this robot starts an episode
        heap: list[tuple[float, int, EpisodeEvent | int]] = [
            (float(start), -1 - robot, robot)
            for robot, start in enumerate(rng.random(self.robots) * 30.0)
        ]
        heapq.heapify(heap)
        number = 0
        while heap:
            time_s, _, event = heapq.heappop(heap)
            if isinstance(event, EpisodeEvent):
                yield time_s, event
                continue
            if number == self.episodes:
                continue
            arm, name = arms[number], str(number)
            behavior, is_good = self._of(arm), next(successes[arm][event])
            yield time_s, EpisodeEvent(name, BEGUN, _NAMES[arm], f'robot {event}')
            end_s = time_s + (behavior.success_s if is_good else behavior.failure_s)
            heapq.heappush(heap, (end_s, number, event))
            what, delay_s = _end(behavior, is_good, *draws[number])
            end = EpisodeEvent(name, what, _NAMES[arm])
            heapq.heappush(heap, (end_s + delay_s, self.episodes + number, end))
            number += 1

    def _successes(self, rng: np.random.Generator, behavior: ArmBehavior) -> list[Iterator[bool]]:
        """Return the results of each robot; they share those of runs over all robots."""
        if behavior.robot_run == 1 and not behavior.slip:
            fleet = iter(_draw_successes(rng, behavior.success, behavior.run, self.episodes))
            return [fleet] * self.robots
        return [iter(_robot_results(rng, behavior, self.episodes)) for _ in range(self.robots)]

    def draw(self, rng: np.random.Generator) -> tuple[Marks, Marks]:
        """
        Return the arm of each episode and whether it succeeds, with all outcomes at once, for
        robots that take turns.
        """
        arms = rng.random(self.episodes) < self.share_percent / 100
        goods = np.zeros(self.episodes, dtype=np.bool_)
        for robot in range(self.robots):
            turns = np.arange(robot, self.episodes, self.robots)
            for arm in (True, False):
                own = turns[arms[turns] == arm]
                goods[own] = _robot_results(rng, self._of(arm), len(own))
        return arms, goods

    def _of(self, is_candidate: bool) -> ArmBehavior:
        return self.candidate if is_candidate else self.champion


_NAMES = {True: 'candidate', False: 'champion'}


def _result(state: CanaryPhase, trial: StepTrial) -> RolloutResult:
    candidate, champion = (trial.totals[arm].begun for arm in ARMS)
    promoted = candidate if state is CanaryPhase.PROMOTED else None
    return RolloutResult(state, promoted, candidate, candidate + champion)


def _draw_successes(rng: np.random.Generator, success: float, run: int, count: int) -> list[bool]:
    results: list[bool] = np.repeat(rng.random(count // run + 1) < success, run)[:count].tolist()
    return results


def _robot_results(rng: np.random.Generator, behavior: ArmBehavior, count: int) -> list[bool]:
    results = _draw_successes(rng, behavior.success, behavior.robot_run, count)
    if behavior.slip:
        share, length = behavior.slipped, behavior.slip
        chance = share / (1 - share) / length
        left = int(rng.integers(1, length + 1)) if rng.random() < share else 0
        for at, draw in enumerate(rng.random(count).tolist()):
            left = left or length * (draw < chance)
            if left:
                results[at], left = False, left - 1
    return results


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
