"""
The comparison of one step, which remembers what it has once shown.

Each step compares only its own episodes: those of the same days and conditions. Pooled over steps
with different shares, a good day with few and a bad day with many episodes of the candidate would
make it look worse than it is. Owned by the executor thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lerobot_serve.router.canary.evidence import Counts, log_not_worse, log_worse
from lerobot_serve.router.canary.plan import Terms


@dataclass(slots=True)
class Comparison:
    """The highest log e in this step, and whether the candidate has passed in any."""

    passed: bool = False
    not_worse: float = 0.0
    worse: float = 0.0

    def look(self, champion: Counts, candidate: Counts, terms: Terms) -> bool:
        """Weigh the outcomes; return True when the candidate passes now for the first time."""
        not_worse, worse = _weigh(champion, candidate, terms.margin)
        self.not_worse, self.worse = max(self.not_worse, not_worse), max(self.worse, worse)
        passed, self.passed = self.passed, self.passed or self.not_worse >= terms.promotion_level
        return self.passed and not passed

    def is_worse(self, terms: Terms, trials: int) -> bool:
        """Return whether the candidate was shown to be worse than the champion."""
        return self.worse >= terms.rollback_level(trials)

    def next_step(self) -> None:
        """Begin to compare anew; what has passed has passed."""
        self.not_worse = self.worse = 0.0


# most looks find the counts of the look before
@lru_cache(maxsize=4)
def _weigh(champion: Counts, candidate: Counts, margin: float) -> tuple[float, float]:
    return log_not_worse(champion, candidate, margin), log_worse(champion, candidate)
