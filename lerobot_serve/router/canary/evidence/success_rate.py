# SPDX-License-Identifier: Apache-2.0
"""
Test sequentially whether a policy succeeds less often than another did before it. Pure functions.

After the promotion the champion begins no episodes, so that no blocks of both arms exist; what it
did until then is known. The null hypothesis: the candidate's rate is at least the champion's minus
the margin. For a rate q of the champion two bets are combined:

1. Against "the champion's rate is at most q" each success of the champion multiplies the wealth by
   1 - f + f / q, each failure by 1 - f.
2. Against "the candidate's rate is at least p", with p = q - margin, each failure of the candidate
   multiplies the wealth by 1 + f p / (1 - p), each success by 1 - f.

If the champion's rate is q and the null is true, the expectation of each factor is at most 1,
given all earlier episodes, so that the product is a supermartingale that starts at 1; so is the
mean over several stakes f. By Ville's inequality it ever reaches 1/alpha with probability at most
alpha. The rate q is unknown, so that the smallest product over all q is the evidence. Both bets
depend on counts alone. The first falls and the second rises with q: between two neighbours of a
grid the product is at least the first bet at the right one times the second at the left one, so
that the grid never overstates the evidence.

An unknown end is counted at its worst by the caller: a failure of the champion, a success of the
candidate.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

GRID: Numbers = np.linspace(0.0, 1.0, 401, dtype=np.float64)
# stakes as fractions of the largest; the guarantee holds for any choice
FRACTIONS: Numbers = np.array((0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9))
# rates of 0 and 1 have infinite stakes
SMALLEST_RATE = 1e-9


# the champion's counts seldom change, and updates are frequent
@lru_cache(maxsize=8)
def worse_evidence(champion: tuple[int, int], candidate: tuple[int, int], margin: float) -> float:
    """
    Return the log e that the candidate is worse than the champion by more than the margin. Both
    are numbers of successes and of failures.
    """
    of_champion = above_evidence(*champion, GRID[1:])
    of_candidate = below_evidence(*candidate, np.clip(GRID[:-1] - margin, 0.0, 1.0))
    return float(np.min(of_champion + of_candidate))


def above_evidence(successes: int, failures: int, rates: Numbers) -> Numbers:
    """Return the log e that the success rate is above each of these rates; falls with the rate."""
    rates = np.maximum(rates, SMALLEST_RATE)[:, None]
    of_success = np.log1p(FRACTIONS * (1 / rates - 1))
    return _log_mean(successes * of_success + failures * np.log1p(-FRACTIONS))


def below_evidence(successes: int, failures: int, rates: Numbers) -> Numbers:
    """Return the log e that the success rate is below each of these rates; rises with the rate."""
    rates = np.minimum(rates, 1 - SMALLEST_RATE)[:, None]
    of_failure = np.log1p(FRACTIONS * rates / (1 - rates))
    return _log_mean(failures * of_failure + successes * np.log1p(-FRACTIONS))


def _log_mean(logs: Numbers) -> Numbers:
    """Return the log of the mean over the stakes, the last axis."""
    top = logs.max(axis=-1)
    mean: Numbers = top + np.log(np.exp(logs - top[:, None]).mean(axis=-1))
    return mean
