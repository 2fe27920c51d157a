# SPDX-License-Identifier: Apache-2.0
"""
Test whether one policy succeeds more often than another, at any number of looks. Any thread.

Episodes of both arms are cut into blocks. The gain of a block is the difference of the two mean
values in it, between -1 and 1. The null hypothesis: given all earlier blocks, the expected gain of
a block is at most -margin. The evidence against it is a number e, the wealth of a gambler who
starts with 1 and bets against the null:

1. With a stake s in (0, 1 / (1 - margin)) a block multiplies the wealth by 1 + s (gain + margin).
   That factor is never negative, and while the null is true its expectation is at most 1. So the
   wealth is a supermartingale that starts at 1, and so is the mean over several stakes.
2. Ville: such a wealth ever reaches 1/alpha with probability alpha at most, however often one
   looks, whatever share each arm gets and whenever that share changes.
3. The factor rises with the gain. So a gain that is taken too low gives an e that is too low: an
   episode whose end is unknown is taken at its worst, and e is valid whatever it turns out to be,
   in whatever order and however late outcomes are reported.
4. Point 2 bounds the highest e over all blocks. So the blocks that are still in progress may be
   left out, and the highest e so far is kept.

Nothing is assumed of the episodes within a block: they may depend on each other. What is assumed
of the blocks is the null itself. See docs/canary.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
import math

# stakes as fractions of the highest: small ones win where gains scatter, large ones where they do
# not. Any choice keeps the guarantee
FRACTIONS = (0.1, 0.3, 0.6, 0.9)


@dataclass(slots=True)
class Wager:
    """Log wealth of each stake after the blocks that are settled."""

    margin: float
    wealth: list[float] = field(default_factory=lambda: [0.0] * len(FRACTIONS))

    def settle(self, gain: float) -> float:
        """Take the gain of one block for good; return log e after it."""
        for k, stake in enumerate(stakes(self.margin)):
            self.wealth[k] += math.log1p(stake * (gain + self.margin))
        return log_mean(self.wealth)

    def highest(self, gains: Iterable[float]) -> float:
        """Return the highest log e after any of further blocks, -inf without one."""
        ahead, best = Wager(self.margin, list(self.wealth)), -math.inf
        for gain in gains:
            best = max(best, ahead.settle(gain))
        return best


def stakes(margin: float) -> Sequence[float]:
    """Return what is bet; below 1 / (1 - margin), at which a gain of -1 would take all."""
    return [fraction / (1 - margin) for fraction in FRACTIONS]


def log_mean(logs: Sequence[float]) -> float:
    """Return the log of the mean of numbers given by their logs."""
    top = max(logs)
    return top + math.log(sum(math.exp(each - top) for each in logs) / len(logs))
