"""The evidence: what the proof rests on, and that the search finds what it claims."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.router.canary.evidence import (
    contradicts,
    Counts,
    first_reached,
    first_worse,
    log_evidence,
    log_gamma,
    log_not_worse,
    log_worse,
    Null,
    worse_by,
)

COUNT = st.integers(0, 400)
COUNTS = st.tuples(COUNT, COUNT, COUNT, COUNT)
HUGE = st.integers(0, 10**12)
MARGIN = st.sampled_from((0.0, 0.01, 0.1, 0.3, 0.5))
INSIDE = st.floats(0.02, 0.98)
CONCENTRATION = st.sampled_from((1.0, 20.0, 200.0))


def column(counts) -> np.ndarray:
    return np.array(counts, float).reshape(4, 1)


def log_e(counts, null: Null) -> float:
    return float(log_evidence(null, column(counts))[0])


def log_k(counts, null: Null, p: float) -> float:
    return float(null.log_ratios(column(counts), np.array([p]))[0])


def reference(successes: int, failures: int, c: float, rate: float) -> float:
    """Return one policy's part of log K by the functions of the standard library."""
    total = math.lgamma(c) - math.lgamma(c + successes + failures)
    for count, part in ((successes, rate), (failures, 1 - rate)):
        total += math.lgamma(c * part + count) - math.lgamma(c * part)
        total -= count * math.log(part)
    return total


@given(st.floats(1e-12, 1e12))
def test_log_gamma_is_that_of_the_standard_library(x):
    here, there = float(log_gamma(np.array([x]))[0]), math.lgamma(x)
    assert here == pytest.approx(there, rel=1e-11, abs=1e-11)


@given(COUNTS, st.floats(0.02, 0.48), MARGIN)
def test_the_ratio_is_the_mixture_over_the_likelihood(counts, p, margin):
    null = worse_by(margin)
    there = reference(*counts[:2], null.concentration_p, p)
    there += reference(*counts[2:], null.concentration_q, p + margin)
    assert log_k(counts, null, p) == pytest.approx(there, rel=1e-9, abs=1e-8)


@given(COUNTS, st.floats(0.02, 0.48), MARGIN, CONCENTRATION, CONCENTRATION)
def test_under_the_null_the_ratio_is_expected_to_stay(counts, p, margin, c_p, c_q):
    # the step of the proof on which everything rests: whichever policy is next
    null = Null(margin, c_p, c_q)
    now = log_k(counts, null, p)
    for arm, rate in ((0, p), (2, p + margin)):
        nexts = [tuple(n + (i == arm + k) for i, n in enumerate(counts)) for k in (0, 1)]
        grown = [math.exp(log_k(n, null, p) - now) for n in nexts]
        assert rate * grown[0] + (1 - rate) * grown[1] == pytest.approx(1, abs=1e-6)


@given(COUNTS, MARGIN, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_the_ratio_is_convex(counts, margin, x, y):
    null, width = worse_by(margin), 1 - margin
    ends, middle = (x * width, y * width), (x + y) / 2 * width
    chord = (log_k(counts, null, ends[0]) + log_k(counts, null, ends[1])) / 2
    assert log_k(counts, null, middle) <= chord + 1e-7


@settings(max_examples=60)
@given(COUNTS, MARGIN)
def test_no_pair_of_the_null_has_a_smaller_ratio(counts, margin):
    # the whole null, not only its border; and the border closely, for the other side
    null = worse_by(margin)
    found = log_e(counts, null)
    rates = np.linspace(0.005, 0.995, 100)
    at_p, at_q = (
        np.array([reference(*part, c, rate) for rate in rates])
        for part, c in ((counts[:2], null.concentration_p), (counts[2:], null.concentration_q))
    )
    inside = rates[:, None] <= rates[None, :] - margin
    lowest = (at_p[:, None] + at_q[None, :])[inside].min()
    assert found <= max(0.0, lowest) + 1e-7
    line = np.linspace(0, 1 - margin, 4001)[1:-1]
    border = float(null.log_ratios(column(counts)[:, :, None], line[None, :]).min())
    assert found <= max(0.0, border) + 1e-7
    a, b, c, d = counts
    if a + b and c + d and a / (a + b) > c / (c + d) - margin:
        assert found == pytest.approx(max(0.0, border), abs=0.05)


@given(st.tuples(HUGE, HUGE, HUGE, HUGE), MARGIN)
def test_never_nan_and_never_negative(counts, margin):
    found = log_e(counts, worse_by(margin))
    assert math.isfinite(found)
    assert found >= 0


@given(COUNTS, MARGIN, CONCENTRATION, CONCENTRATION)
def test_success_and_failure_may_change_names(counts, margin, c_p, c_q):
    a, b, c, d = counts
    here = log_e((a, b, c, d), Null(margin, c_p, c_q))
    there = log_e((d, c, b, a), Null(margin, c_q, c_p))
    assert here == pytest.approx(there, abs=1e-6)


@given(COUNTS, MARGIN)
def test_a_success_more_never_speaks_against(counts, margin):
    # of rates that were never 0 or 1: the first failure ever has a price of its own
    a, b, c, d = (count + 1 for count in counts)
    null = worse_by(margin)
    now = log_e((a, b, c, d), null)
    assert log_e((a + 1, b, c, d), null) >= now - 1e-7
    assert log_e((a, b, c, d + 1), null) >= now - 1e-7
    assert log_e((a, b + 1, c, d), null) <= now + 1e-7
    assert log_e((a, b, c + 1, d), null) <= now + 1e-7


@given(COUNTS)
def test_a_wider_margin_is_easier_to_show(counts):
    margins = (0.0, 0.02, 0.1, 0.3, 0.5)
    found = [log_e(counts, worse_by(margin)) for margin in margins]
    assert found == sorted(found)


@given(COUNT, COUNT, MARGIN)
def test_one_policy_alone_shows_nothing(successes, failures, margin):
    some, none = Counts(successes, failures), Counts(0, 0)
    assert log_not_worse(some, none, margin) == log_not_worse(none, some, margin) == 0
    assert log_worse(some, none) == log_worse(none, some) == 0


@given(COUNTS)
def test_better_and_worse_are_never_both_shown(counts):
    champion, candidate = Counts(*counts[:2]), Counts(*counts[2:])
    assert min(log_not_worse(champion, candidate, 0.0), log_worse(champion, candidate)) == 0


@settings(max_examples=30)
@given(st.integers(0, 2**32), MARGIN, st.floats(0.5, 8), INSIDE, INSIDE)
def test_the_first_look_is_the_first_by_trying_all(seed, margin, level, p, q):
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 2, 150) * 2
    kinds += rng.random(150) >= np.where(kinds == 0, p, q)
    counts = np.cumsum(np.arange(4)[:, None] == kinds, axis=1).astype(float)
    null = worse_by(margin)
    reached = np.flatnonzero(log_evidence(null, counts) >= level)
    assert first_reached(null, counts, level) == (reached[0] if len(reached) else 150)


def test_looks_may_be_none():
    assert first_worse(Counts(np.zeros(0), np.zeros(0)), Counts(np.zeros(0), np.zeros(0)), 3) == 0


EPISODES = 14
STATES = np.array(
    [
        (a, b, c, n - a - b - c)
        for n in range(EPISODES + 1)
        for a in range(n + 1)
        for b in range(n + 1 - a)
        for c in range(n + 1 - a - b)
    ],
    float,
).T


def worst_case(evidence: np.ndarray, p: float, q: float, level: float) -> float:
    """Return the probability to reach the level when an adversary chooses who is next."""
    value: dict[tuple[float, ...], float] = {}
    for state, log_e in zip(map(tuple, STATES.T[::-1]), evidence[::-1], strict=True):
        if log_e >= level:
            value[state] = 1.0
        elif sum(state) == EPISODES:
            value[state] = 0.0
        else:
            a, b, c, d = state
            value[state] = max(
                p * value[a + 1, b, c, d] + (1 - p) * value[a, b + 1, c, d],
                q * value[a, b, c + 1, d] + (1 - q) * value[a, b, c, d + 1],
            )
    return value[0, 0, 0, 0]


def likelihood_ratio(margin: float) -> np.ndarray:
    """Return what log e must not be: the highest likelihood over the highest of the border."""
    a, b, c, d = STATES[:, :, None]
    p = np.linspace(0, 1 - margin, 201)[1:-1]
    q = np.clip(p + margin, 0, 1 - 1e-9)
    border = a * np.log(p) + b * np.log1p(-p) + c * np.log(q) + d * np.log1p(-q)
    totals = np.maximum(STATES[::2] + STATES[1::2], 1).repeat(2, axis=0)
    highest = (STATES * np.log(np.maximum(STATES, 1) / totals)).sum(axis=0)
    return np.where(contradicts(STATES, margin), highest - border.max(axis=1), 0.0)


@pytest.mark.parametrize('margin', [0.0, 0.2])
@pytest.mark.parametrize('alpha', [0.1, 0.3])
def test_no_choice_of_who_is_next_breaks_the_bound(margin, alpha):
    # exact, without chance: the most that somebody could reach who knows all outcomes so far and
    # decides whose episode is next and when to stop. Wide distributions, to get far in few
    wrong, right = [
        max(
            worst_case(evidence, p, p + margin, -math.log(alpha))
            for p in np.linspace(0.0, 1 - margin, 7)
        )
        for evidence in (likelihood_ratio(margin), log_evidence(Null(margin, 1.0, 1.0), STATES))
    ]
    assert 0 < right <= alpha < wrong
