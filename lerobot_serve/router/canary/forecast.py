# SPDX-License-Identifier: Apache-2.0
"""Forecast the episodes until a comparison is decided. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
import math

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.router.canary.evidence import log_mean, stakes
from lerobot_serve.router.canary.plan import Terms
from lerobot_serve.router.canary.trial import ArmCounts, StepTrial

# further than this nobody waits
MAX_FORECAST_EPISODES = 20_000
# fewer say nothing about a rate
MIN_FORECAST_EPISODES = 10

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Forecast:
    """If both rates stay as they are: so many more episodes of the candidate, and then what."""

    episodes: int
    # otherwise rolled back
    promoted: bool


@dataclass(frozen=True, slots=True)
class WagerForecast:
    """One wager: its log wealth, its margin, the success rates it counts with, and its goal."""

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
    trial: StepTrial, *, share_percent: int, terms: Terms, trials: int
) -> Forecast | None:
    """Return the forecast; None when it would take more than EPISODES_LIMIT, or nobody knows."""
    candidate, champion = trial.totals['candidate'], trial.totals['champion']
    if (
        min(candidate.begun - candidate.open, champion.begun - champion.open)
        < MIN_FORECAST_EPISODES
    ):
        return None
    promotion = WagerForecast(
        tuple(trial.wide.wagers['promotion'].wealth),
        terms.margin,
        _rate(candidate, candidate.success),
        _rate(champion, champion.success + champion.moved + champion.unreported),
        terms.promotion_level,
        _sizes(terms.block_episodes, share_percent),
        1,
    )
    rollback = WagerForecast(
        tuple(trial.narrow.wagers['rollback'].wealth),
        0.0,
        _rate(candidate, candidate.success + candidate.unreported),
        _rate(champion, champion.success),
        terms.rollback_level(trials),
        _sizes(1, share_percent),
        -1,
    )
    promoted, rolled_back = _episodes(promotion), _episodes(rollback)
    first = min(promoted, rolled_back)
    return (
        Forecast(math.ceil(first), promoted <= rolled_back)
        if first <= MAX_FORECAST_EPISODES
        else None
    )


# asked again at each look, mostly with the counts of the look before
@lru_cache(maxsize=4)
def _episodes(race: WagerForecast) -> float:
    """Return how many episodes of the candidate it takes; inf when it never comes there."""
    size = race.sizes[0]
    growths = _growths(race)
    if max(growths) <= 0:
        return math.inf
    # some stake alone gets there; the mean of all may be there sooner
    blocks = MAX_FORECAST_EPISODES // size + 1
    if not _is_there(race, growths, blocks):
        return math.inf
    low, high = 0, blocks
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_there(race, growths, middle) else (middle, high)
    return float(high * size)


def _is_there(race: WagerForecast, growths: Sequence[float], blocks: int) -> bool:
    logs = [w + blocks * growth for w, growth in zip(race.wealth, growths, strict=True)]
    return log_mean(logs) >= race.level


def _growths(race: WagerForecast) -> list[float]:
    """Return by how much the log wealth of each stake is expected to grow with a block."""
    (x, p_x), (y, p_y) = (
        _means(size, rate)
        for size, rate in zip(race.sizes, (race.candidate, race.champion), strict=True)
    )
    gains = race.sign * (x[:, None] - y[None, :]) + race.margin
    chances = p_x[:, None] * p_y[None, :]
    return [float((chances * np.log1p(stake * gains)).sum()) for stake in stakes(race.margin)]


def _means(size: int, rate: float) -> tuple[Numbers, Numbers]:
    """Return the mean values that a block can have, and how likely each is."""
    logs = np.array([math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1)
                     + k * math.log(rate) + (size - k) * math.log1p(-rate)
                     for k in range(size + 1)])  # fmt: skip
    return np.arange(size + 1) / size, np.exp(logs)


def _sizes(size: int, share_percent: int) -> tuple[int, int]:
    """Return about how many episodes of candidate and champion a block has."""
    share = share_percent / 100
    scale = size / min(share, 1 - share)
    return max(size, round(scale * share)), max(size, round(scale * (1 - share)))


def _rate(arm: ArmCounts, good: int) -> float:
    """Return a rate which is never quite 0 or 1."""
    return (good + 0.5) / (arm.begun - arm.open + 1)
