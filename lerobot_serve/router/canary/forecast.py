"""About how many more episodes until a comparison is decided. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lerobot_serve.router.canary.evidence import Counts, first_passed, first_worse
from lerobot_serve.router.canary.plan import Terms

# further than this nobody waits
EPISODES_LIMIT = 20_000
# fewer say nothing about a rate
EPISODES_LEAST = 10
COARSE, FINE = 24, 9


@dataclass(frozen=True, slots=True)
class Forecast:
    """If both rates stay as they are: so many more episodes of the candidate, and then what."""

    episodes: int
    # otherwise rolled back
    promoted: bool


# asked again at each look, mostly with the counts of the look before
@lru_cache(maxsize=4)
def episodes_to_decide(
    champion: Counts,
    candidate: Counts,
    *,
    share_percent: int,
    terms: Terms,
    trials: int,
) -> Forecast | None:
    """Return the forecast; None when it would take more than EPISODES_LIMIT, or nobody knows."""
    if np.add(candidate.successes, candidate.failures) < EPISODES_LEAST:
        return None
    if np.add(champion.successes, champion.failures) < EPISODES_LEAST:
        return None
    others = (100 - share_percent) / share_percent
    more = np.unique(np.geomspace(1, EPISODES_LIMIT, COARSE).round())
    for _ in range(2):
        later = _grown(champion, more * others), _grown(candidate, more)
        passes = first_passed(*later, terms.margin, terms.promotion_level)
        is_worse = first_worse(*later, terms.rollback_level(trials))
        first = min(passes, is_worse)
        if first == len(more):
            return None
        found = Forecast(int(more[first]), passes < is_worse)
        before = more[first - 1] if first else 1.0
        more = np.unique(np.linspace(before, more[first], FINE).round())
    return found


def _grown(counts: Counts, more: np.ndarray) -> Counts:
    """Return the counts after more episodes at the present rate, which is never quite 0 or 1."""
    rate = (counts.successes + 0.5) / (np.add(counts.successes, counts.failures) + 1)
    return Counts(counts.successes + more * rate, counts.failures + more * (1 - rate))
