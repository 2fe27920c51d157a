"""
Rollouts that never happened, to see how often a canary is wrong and how long it takes.

The same evidence and the same rule as in the canary, looked at after every episode; without
guards, minimum times and missing data. Pure functions of random numbers that are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import math

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.router.canary.evidence import Counts, first_passed, first_worse, Numbers
from lerobot_serve.router.canary.guards import REPORTED_LEAST
from lerobot_serve.router.canary.plan import Plan, Terms
from lerobot_serve.router.canary.states import State

# looks that are weighed at once
CHUNK = 500
# what everybody would use: wrong in 5 % when looked at once
NAIVE_Z = 1.645


@dataclass(frozen=True, slots=True)
class Rates:
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
class Result:
    """How one rollout ended, and after how many episodes."""

    # PROMOTED, ROLLED_BACK or, when the episodes ran out, HELD
    state: State
    # of the candidate until the first promotion; None: never
    first_promotion: int | None
    candidate_episodes: int
    episodes: int


# at which look the candidate passes, and at which it is shown to be worse; len(looks): never
Judge = Callable[[Counts, Counts, Terms, int], tuple[int, int]]


def sequential(champion: Counts, candidate: Counts, terms: Terms, trials: int) -> tuple[int, int]:
    """The judge that the canary uses."""
    return (
        first_passed(champion, candidate, terms.margin, terms.promotion_level),
        first_worse(champion, candidate, terms.rollback_level(trials)),
    )


def naive(champion: Counts, candidate: Counts, terms: Terms, trials: int) -> tuple[int, int]:
    """A z-test that is looked at all the time, to show that this simulation finds fault."""
    totals = [np.maximum(c.successes + c.failures, 1) for c in (champion, candidate)]
    p, q = champion.successes / totals[0], candidate.successes / totals[1]
    error = np.sqrt(p * (1 - p) / totals[0] + q * (1 - q) / totals[1])
    fit = (np.minimum(*totals) >= REPORTED_LEAST) & (error > 0)
    error = np.where(fit, error, 1.0)
    return (
        _first(fit & ((q - p + terms.margin) / error >= NAIVE_Z)),
        _first(fit & ((p - q) / error >= NAIVE_Z)),
    )


def rollout(
    draws: Numbers,
    rates: Rates,
    plan: Plan,
    terms: Terms,
    judge: Judge = sequential,
    *,
    pooled: bool = False,
) -> Result:
    """
    Return what becomes of one candidate.

    `draws` are uniform random numbers: for each episode one that places it and one that decides
    it. `pooled` compares all episodes since the begin instead of those of the step.
    """
    limit = draws.shape[1]
    chances = rates.at(np.arange(limit))
    at, candidates, first, passed = 0, 0, None, False
    carried = np.zeros(4)
    for number, step in enumerate(plan.trials):
        if number and not pooled:
            carried = np.zeros(4)
        in_step = np.zeros(4)
        while True:
            if at >= limit:
                return Result(State.HELD, first, candidates, limit)
            part = slice(at, min(limit, at + CHUNK))
            new = _outcomes(draws[:, part], [c[part] for c in chances], step.share_percent)
            looks, looks_in_step = new + carried[:, None], new + in_step[:, None]
            size = new.shape[1]
            passes, is_worse = judge(
                Counts(*looks[:2]), Counts(*looks[2:]), terms, len(plan.trials)
            )
            passes = 0 if passed else passes
            promotes = max(passes, _first(_enough(looks_in_step, step.minimum_episodes)))
            used = min(promotes, is_worse, size - 1) + 1
            at, candidates = at + used, candidates + int(new[2:, used - 1].sum())
            carried, in_step = looks[:, used - 1], looks_in_step[:, used - 1]
            passed = passed or passes < used
            if is_worse < used:
                return Result(State.ROLLED_BACK, first, candidates, at)
            if promotes < used:
                first = first or candidates
                break
    return Result(State.PROMOTED, first, candidates, at)


def fleet(
    rng: np.random.Generator,
    rates: Rates,
    *,
    robots: int,
    share_percent: int,
    success_s: float,
    failure_s: float,
    seconds: float,
) -> tuple[Numbers, NDArray[np.bool_], NDArray[np.bool_]]:
    """
    Return when episodes ended [s], whether with the candidate, and whether well; by time.

    Robots do one episode after the other. Before 0 s the champion has them all. Failures last
    longer than successes, so among the first episodes of the candidate to end there are few.
    """
    lead_s = 5 * failure_s
    shape = robots, math.ceil((seconds + lead_s) / min(success_s, failure_s)) + 1
    place, luck = rng.random(shape), rng.random(shape)
    begin = -lead_s - failure_s * rng.random(robots)
    ends, arms, goods = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape, bool)
    for i in range(shape[1]):
        arms[:, i] = (begin >= 0) & (place[:, i] < share_percent / 100)
        goods[:, i] = luck[:, i] < np.where(arms[:, i], rates.candidate, rates.champion)
        begin = ends[:, i] = begin + np.where(goods[:, i], success_s, failure_s)
    order = np.argsort(ends, axis=None)
    order = order[(ends.ravel()[order] >= 0) & (ends.ravel()[order] < seconds)]
    return ends.ravel()[order], arms.ravel()[order], goods.ravel()[order]


def cumulated(arms: NDArray[np.bool_], goods: NDArray[np.bool_]) -> Numbers:
    """Return champion's successes and failures, then the candidate's, after each episode."""
    kinds = np.stack([~arms & goods, ~arms & ~goods, arms & goods, arms & ~goods])
    return np.cumsum(kinds, axis=1, dtype=float)


def _outcomes(draws: Numbers, chances: list[Numbers], share_percent: int) -> Numbers:
    arms = draws[0] < share_percent / 100
    return cumulated(arms, draws[1] < np.where(arms, chances[1], chances[0]))


def _enough(looks: Numbers, minimum_episodes: int) -> NDArray[np.bool_]:
    champion, candidate = looks[:2].sum(axis=0), looks[2:].sum(axis=0)
    least = max(minimum_episodes, REPORTED_LEAST)
    return (candidate >= least) & (champion >= REPORTED_LEAST)


def _first(marks: NDArray[np.bool_]) -> int:
    """Return where the first is True; the length if none is."""
    return int(marks.argmax()) if marks.any() else len(marks)
