"""
Which of two policies is better, judged as often as one likes. Pure functions, any thread.

Two streams of successes and failures, with the unknown success rates p and q. The null hypothesis
is p <= q - margin; the evidence against it is a number e that starts at 1. Why it may be looked at
after every episode, whatever share each policy gets and whenever that share changes:

1. Take one pair (p, q) of the null. Let K(p, q) be the probability of all outcomes when each rate
   is drawn from a Beta distribution around its p or q, divided by their probability at (p, q).
2. If (p, q) is the truth, K is a likelihood ratio: after every outcome, of whichever policy, its
   expected next value is its present one. It is a martingale, never negative, and starts at 1.
3. e is the smallest K over all pairs of the null, so e <= K(truth) at all times.
4. Ville: a martingale that starts at 1 and is never negative ever reaches 1/alpha with
   probability alpha at most. So the same holds for e, if the null is true.
5. log K is convex: each outcome adds a term log(c + i / t) of its rate t, with c, i >= 0, and K at
   the observed rates is at most 1. So where e exceeds 1, the observed rates lie outside the null
   and the smallest K lies on the line p = q - margin, where a bracket that narrows finds it.

What it does not cover: episodes that influence each other, and outcomes that are reported or not
depending on what they are. See docs/canary.md.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The Beta distributions are as narrow as if so many episodes had been seen before. Any value keeps
# the guarantee, and twice or half of these hardly changes how many episodes are needed: to tell 10
# points, 2/3 of those with a flat distribution over the highest likelihood of the null. More for
# the champion, whose rate is known better.
CANDIDATE_CONCENTRATION, CHAMPION_CONCENTRATION = 20.0, 60.0
# the search: in each round the best of so many rates and its neighbours remain
POINTS, ROUNDS = 33, 6
EDGE = 1e-12
# log K anywhere on the line bounds the smallest: tried in turn, as far from about where it is
BOUNDS = (np.zeros(1), np.linspace(-0.04, 0.04, 17))
# Stirling's series, which is exact to 1e-12 from SHIFT on
SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
SHIFT = 5

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counts:
    """Outcomes of one policy: numbers, or arrays of them (one entry a look)."""

    successes: ArrayLike
    failures: ArrayLike


@dataclass(frozen=True, slots=True)
class Null:
    """p <= q - margin, and how narrow the Beta distributions around p and q are."""

    margin: float
    concentration_p: float
    concentration_q: float

    def log_ratios(self, counts: Numbers, p: Numbers) -> Numbers:
        """Return log K(p, p + margin); `counts` has four rows as from `stacked`."""
        q = p + self.margin
        rates = np.clip(np.stack([p, 1 - p, q, 1 - q]), EDGE, 1.0)
        narrow = np.repeat(self.concentrations, 2).reshape(4, *[1] * p.ndim)
        terms = log_rising(rates * narrow, counts) - counts * np.log(rates)
        totals = counts[::2] + counts[1::2]
        return terms.sum(axis=0) - log_rising(narrow[::2], totals).sum(axis=0)

    @property
    def concentrations(self) -> Numbers:
        return np.array([self.concentration_p, self.concentration_q])


# the candidate is not worse; p is the champion's rate
NOT_WORSE = Null(0.0, CHAMPION_CONCENTRATION, CANDIDATE_CONCENTRATION)


def worse_by(margin: float) -> Null:
    """Return "the candidate is worse by the margin or more"; p is the candidate's rate."""
    return Null(margin, CANDIDATE_CONCENTRATION, CHAMPION_CONCENTRATION)


def log_not_worse(champion: Counts, candidate: Counts, margin: float) -> float:
    """Return log e against "the candidate is worse by the margin or more"."""
    return float(log_evidence(worse_by(margin), stacked(candidate, champion))[0])


def log_worse(champion: Counts, candidate: Counts) -> float:
    """Return log e against "the candidate is not worse"."""
    return float(log_evidence(NOT_WORSE, stacked(champion, candidate))[0])


def first_passed(champion: Counts, candidate: Counts, margin: float, level: float) -> int:
    """
    Return the first look at which "the candidate is worse by the margin or more" is refuted.

    That is when log e reaches `level`. The number of looks when it never does.
    """
    return first_reached(worse_by(margin), stacked(candidate, champion), level)


def first_worse(champion: Counts, candidate: Counts, level: float) -> int:
    """Return the first look at which "the candidate is not worse" is refuted; see above."""
    return first_reached(NOT_WORSE, stacked(champion, candidate), level)


def stacked(p_counts: Counts, q_counts: Counts) -> Numbers:
    """Return rows of successes and failures at rate p, then at rate q; a column a look."""
    rows = (p_counts.successes, p_counts.failures, q_counts.successes, q_counts.failures)
    return np.stack(np.broadcast_arrays(*rows)).astype(float).reshape(4, -1)


def first_reached(null: Null, counts: Numbers, level: float) -> int:
    """Return the first column whose log e reaches the level (above 0); their number if none."""
    near = _near_smallest(null, counts)
    may = np.flatnonzero(contradicts(counts, null.margin))
    for around in BOUNDS:
        rates = np.clip(near[may, None] + around, 0, 1 - null.margin)
        bounds = null.log_ratios(counts[:, may, None], rates).min(axis=1)
        may = may[bounds >= level]
    size = 1
    while len(may):
        # mostly the first has reached it
        batch, may, size = may[:size], may[size:], 2 * size
        reached = np.flatnonzero(log_evidence(null, counts[:, batch]) >= level)
        if len(reached):
            return int(batch[reached[0]])
    return counts.shape[1]


def log_evidence(null: Null, counts: Numbers) -> Numbers:
    """Return log e of each column, 0 where there is no evidence."""
    result = np.zeros(counts.shape[1])
    against = contradicts(counts, null.margin)
    if against.any():
        result[against] = np.maximum(_smallest(null, counts[:, against]), 0.0)
    return result


def contradicts(counts: Numbers, margin: float) -> NDArray[np.bool_]:
    """Return where the observed rates lie outside the null; nowhere without both policies."""
    totals = counts[::2] + counts[1::2]
    p, q = counts[::2] / np.maximum(totals, 1.0)
    return (totals > 0).all(axis=0) & (p > q - margin)


def _smallest(null: Null, counts: Numbers) -> Numbers:
    """Return the smallest log K on the line for each column. Convex, so the bracket narrows."""
    columns = counts[:, :, None]
    begin = np.zeros((counts.shape[1], 1))
    end = np.full_like(begin, 1 - null.margin)
    parts = np.linspace(0.0, 1.0, POINTS)
    for _ in range(ROUNDS):
        rates = begin + (end - begin) * parts
        values = null.log_ratios(columns, rates)
        best = values.argmin(axis=1)[:, None]
        begin, end = (
            np.take_along_axis(rates, np.clip(best + side, 0, POINTS - 1), axis=1)
            for side in (-1, 1)
        )
    return values.min(axis=1)


def _near_smallest(null: Null, counts: Numbers) -> Numbers:
    """Return about the p of the smallest: the better known a rate, the nearer to it."""
    totals = np.maximum(counts[::2] + counts[1::2], 1.0)
    p, q = counts[::2] / totals
    known = totals**2 / (totals + null.concentrations[:, None])
    return np.clip(np.average([p, q - null.margin], axis=0, weights=known), 0, 1 - null.margin)


def log_rising(base: Numbers, count: Numbers) -> Numbers:
    """Return log(base (base + 1) ... (base + count - 1)); count may be a fraction."""
    after, before = log_gamma(np.stack(np.broadcast_arrays(base + count, base)))
    return after - before


def log_gamma(x: Numbers) -> Numbers:
    """Return log(gamma(x)) of positive numbers; numpy has none for arrays."""
    product = x
    for step in range(1, SHIFT):
        product = product * (x + step)
    y = x + SHIFT
    square = 1 / (y * y)
    tail = SERIES[-1]
    for coefficient in reversed(SERIES[:-1]):
        tail = tail * square + coefficient
    return (y - 0.5) * np.log(y) - y + 0.5 * math.log(2 * math.pi) + tail / y - np.log(product)
