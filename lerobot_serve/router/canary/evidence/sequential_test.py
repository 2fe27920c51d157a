# SPDX-License-Identifier: Apache-2.0
"""
Test sequentially whether one policy succeeds more often than another. Any thread.

Episodes of both arms are grouped into blocks. The gain of a block is the difference of the two
mean values in the block, between -1 and 1. The null hypothesis: given all earlier blocks, the
expected gain of a block is at most -margin. The evidence against it is an e-value, the wealth of a
gambler who starts with 1 and bets against the null:

1. With a stake s in (0, 1 / (1 - margin)) a block multiplies the wealth by 1 + s (gain + margin).
   The factor is never negative, and under the null its expectation is at most 1. So the wealth is
   a supermartingale that starts at 1, and so is the mean over several stakes.
2. Ville's inequality: the wealth ever reaches 1/alpha with probability at most alpha, for any
   number of evaluations, any share of each arm and any change of the shares.
3. The factor rises with the gain, so that an underestimated gain underestimates e. An episode with
   an unknown end is counted at its worst, and e is valid for any later outcome, in any order and
   with any delay of the reports.
4. Point 2 bounds the largest e over all blocks. So incomplete blocks may be omitted, and the
   largest e so far is kept.

Episodes within a block may depend on each other; the null hypothesis is the only assumption about
the blocks. See docs/canary.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
import math
from operator import add

# stakes as fractions of the largest: small ones suit scattered gains, large ones constant gains.
# The guarantee holds for any choice
FRACTIONS = (0.1, 0.3, 0.6, 0.9)


@dataclass(slots=True)
class Wager:
    """Log wealth of each stake after all settled blocks."""

    margin: float
    wealth: list[float] = field(default_factory=lambda: [0.0] * len(FRACTIONS))

    def settle(self, gain: float) -> float:
        """Settle a block with its gain; return log e."""
        self.wealth = self._after(self.wealth, gain)
        return log_mean(self.wealth)

    def highest(self, gains: Iterable[float], floor: float = -math.inf) -> float:
        """Return the largest log e after any of the further blocks, at least the floor."""
        wealth, best = self.wealth, floor
        for gain in gains:
            wealth = self._after(wealth, gain)
            # the mean is at most the largest
            if max(wealth) > best:
                best = max(best, log_mean(wealth))
        return best

    def _after(self, wealth: Sequence[float], gain: float) -> list[float]:
        return list(map(add, wealth, log_factors(self.margin, gain)))


@lru_cache
def stakes(margin: float) -> tuple[float, ...]:
    """Return the stakes, below 1 / (1 - margin), at which a gain of -1 would lose all wealth."""
    return tuple(fraction / (1 - margin) for fraction in FRACTIONS)


# the gains of small blocks are few numbers
@lru_cache(4096)
def log_factors(margin: float, gain: float) -> tuple[float, ...]:
    """Return the log of the factor of each stake for a block with this gain."""
    return tuple(math.log1p(stake * (gain + margin)) for stake in stakes(margin))


def log_mean(logs: Sequence[float]) -> float:
    """Return the log of the mean of numbers that are given by their logs."""
    top = max(logs)
    return top + math.log(sum([math.exp(each - top) for each in logs]) / len(logs))
