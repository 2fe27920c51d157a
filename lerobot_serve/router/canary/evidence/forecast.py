# SPDX-License-Identifier: Apache-2.0
"""Forecast the episodes until a comparison is decided. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
import math

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.router.canary.evidence.sequential_test import log_mean, stakes
from lerobot_serve.router.canary.evidence.trial import StepTrial
from lerobot_serve.router.canary.facts import ArmCounts
from lerobot_serve.router.parameters import RouterParameters

# longer forecasts are not reported
MAX_FORECAST_EPISODES = 20_000
# minimum number of episodes for a rate
MIN_FORECAST_EPISODES = 10

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Forecast:
    """At the present rates: the remaining episodes of the candidate, and the decision."""

    episodes: int
    # False: rolled back
    promoted: bool


@dataclass(frozen=True, slots=True)
class WagerForecast:
    """One wager: its log wealth, margin, success rates of both arms, and the level to reach."""

    wealth: tuple[float, ...]
    margin: float
    candidate: float
    champion: float
    level: float
    # episodes of both arms in a block
    sizes: tuple[int, int]
    # +1: bets on the candidate, -1: on the champion
    sign: int


def episodes_to_decide(
    trial: StepTrial, *, share_percent: int, rules: RouterParameters, trials: int
) -> Forecast | None:
    """
    Return the forecast; None beyond MAX_FORECAST_EPISODES or with fewer than MIN_FORECAST_EPISODES
    of either arm.
    """
    candidate, champion = trial.totals['candidate'], trial.totals['champion']
    if (
        min(candidate.begun - candidate.open, champion.begun - champion.open)
        < MIN_FORECAST_EPISODES
    ):
        return None
    promotion = WagerForecast(
        wealth=tuple(trial.wide.wagers['promotion'].wealth),
        margin=rules.canary_margin,
        candidate=_rate(candidate, candidate.success),
        champion=_rate(champion, champion.success + champion.moved + champion.unreported),
        level=rules.promotion_level * trial.promotion_factor,
        sizes=_sizes(rules.canary_block_episodes, share_percent),
        sign=1,
    )
    rollback = WagerForecast(
        wealth=tuple(trial.narrow.wagers['rollback'].wealth),
        margin=0.0,
        candidate=_rate(candidate, candidate.success + candidate.unreported),
        champion=_rate(champion, champion.success),
        level=rules.rollback_level(trials) * trial.rollback_factor,
        sizes=_sizes(1, share_percent),
        sign=-1,
    )
    promoted, rolled_back = _episodes(promotion), _episodes(rollback)
    first = min(promoted, rolled_back)
    return (
        Forecast(math.ceil(first), promoted <= rolled_back)
        if first <= MAX_FORECAST_EPISODES
        else None
    )


# called at each update, mostly with unchanged counts
@lru_cache(maxsize=4)
def _episodes(wager: WagerForecast) -> float:
    """Return the episodes of the candidate until the wager reaches its level; inf for never."""
    size = wager.sizes[0]
    growths = _growths(wager)
    if max(growths) <= 0:
        return math.inf
    # the mean over the stakes may reach the level before the best stake does
    blocks = MAX_FORECAST_EPISODES // size + 1
    if not _reaches_level(wager, growths, blocks):
        return math.inf
    low, high = 0, blocks
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _reaches_level(wager, growths, middle) else (middle, high)
    return float(high * size)


def _reaches_level(wager: WagerForecast, growths: Sequence[float], blocks: int) -> bool:
    """Return whether the expected evidence after `blocks` reaches the level."""
    logs = [w + blocks * growth for w, growth in zip(wager.wealth, growths, strict=True)]
    return log_mean(logs) >= wager.level


def _growths(wager: WagerForecast) -> list[float]:
    """Return the expected growth of the log wealth of each stake per block."""
    (x, p_x), (y, p_y) = (
        _means(size, rate)
        for size, rate in zip(wager.sizes, (wager.candidate, wager.champion), strict=True)
    )
    gains = wager.sign * (x[:, None] - y[None, :]) + wager.margin
    probabilities = p_x[:, None] * p_y[None, :]
    return [
        float((probabilities * np.log1p(stake * gains)).sum()) for stake in stakes(wager.margin)
    ]


def _means(size: int, rate: float) -> tuple[Numbers, Numbers]:
    """Return the possible mean values of a block and their probabilities."""
    logs = np.array([math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1)
                     + k * math.log(rate) + (size - k) * math.log1p(-rate)
                     for k in range(size + 1)])  # fmt: skip
    return np.arange(size + 1) / size, np.exp(logs)


def _sizes(size: int, share_percent: int) -> tuple[int, int]:
    """Return the expected episodes of candidate and champion in a block."""
    share = share_percent / 100
    scale = size / min(share, 1 - share)
    return max(size, round(scale * share)), max(size, round(scale * (1 - share)))


def _rate(arm: ArmCounts, good: int) -> float:
    """Return the smoothed rate, strictly between 0 and 1."""
    return (good + 0.5) / (arm.begun - arm.open + 1)
