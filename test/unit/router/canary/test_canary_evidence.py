# SPDX-License-Identifier: Apache-2.0
"""The evidence: what the proof rests on, and the most that an adversary reaches, exactly."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.router.canary.evidence.sequential_test import log_mean, stakes, Wager

MARGIN = st.sampled_from((0.0, 0.01, 0.1, 0.3, 0.5))
GAIN = st.floats(-1.0, 1.0)
GAINS = st.lists(GAIN, max_size=30)


def wagered(gains: list[float], margin: float) -> Wager:
    wager = Wager(margin)
    for gain in gains:
        wager.settle(gain)
    return wager


@given(MARGIN, st.lists(st.tuples(GAIN, st.floats(0.01, 1.0)), min_size=1, max_size=6))
def test_under_the_null_no_stake_is_expected_to_win(margin, cases):
    # the step of the proof on which everything rests, for any distribution of the gain
    gains, chances = np.array(cases).T
    chances /= chances.sum()
    # as much mass on -1 as brings the expected gain down to the null
    mean = float((gains * chances).sum())
    mass = max(0.0, (mean + margin) / (mean + 1)) if mean > -1 else 0.0
    gains, chances = np.append(gains, -1.0), np.append(chances * (1 - mass), mass)
    assert float((gains * chances).sum()) <= -margin + 1e-9
    for stake in stakes(margin):
        factors = 1 + stake * (gains + margin)
        assert factors.min() > 0
        assert float((factors * chances).sum()) <= 1 + 1e-9


@given(MARGIN, GAINS, st.data())
def test_a_gain_that_is_taken_too_low_gives_evidence_that_is_too_low(margin, gains, data):
    lower = [data.draw(st.floats(-1.0, gain)) for gain in gains]
    assert Wager(margin).highest(lower) <= Wager(margin).highest(gains)
    assert log_mean(wagered(lower, margin).wealth) <= log_mean(wagered(gains, margin).wealth)


@given(MARGIN, GAINS, GAINS)
def test_settled_blocks_and_blocks_ahead_count_alike(margin, settled, ahead):
    both = wagered(settled + ahead, margin)
    some = wagered(settled, margin)
    steps = [log_mean(wagered(settled + ahead[: i + 1], margin).wealth) for i in range(len(ahead))]
    assert some.highest(ahead) == pytest.approx(max(steps, default=-math.inf))
    assert some.wealth == wagered(settled, margin).wealth
    assert len(both.wealth) == len(stakes(margin))


def test_without_a_block_there_is_no_evidence():
    assert log_mean(Wager(0.1).wealth) == 0.0
    assert Wager(0.1).highest([]) == -math.inf


@given(GAINS)
def test_a_wider_margin_is_easier_to_show(gains):
    found = [log_mean(wagered(gains, m).wealth) for m in (0.0, 0.02, 0.1, 0.3, 0.5)]
    assert found == sorted(found)


@given(st.lists(st.floats(-700, 700), min_size=1, max_size=5))
def test_the_mean_of_logs_is_that_of_their_numbers(logs):
    top = max(logs)
    direct = math.log(np.mean([math.exp(each - top) for each in logs])) + top
    assert log_mean(logs) == pytest.approx(direct, abs=1e-9)


BLOCKS = 9


def worst_case(margin: float, level: float, *, paid: float) -> float:
    """
    Return the probability to reach the level when an adversary picks how each gain falls, within
    the null and knowing all gains before, and when to stop. Gains are -1, 0 or 1. `paid` is the
    margin that the wager adds to each gain.
    """
    stake_list = stakes(margin)
    grid = np.linspace(0, 1, 11)
    chances = [(low, (1 - low) * zero) for low in grid for zero in np.linspace(0, 1, 6)]
    allowed = [
        (low, zero, 1 - low - zero)
        for low, zero in chances
        if 1 - 2 * low - zero <= -margin + 1e-9
    ]

    def value(left: int, wealth: tuple[float, ...]) -> float:
        if sum(wealth) / len(wealth) >= level:
            return 1.0
        if left == 0:
            return 0.0
        nexts = [
            value(left - 1, tuple(round(w * (1 + s * (g + paid)), 12) for w, s in zip(
                wealth, stake_list, strict=True)))
            for g in (-1, 0, 1)
        ]  # fmt: skip
        return max(sum(p * v for p, v in zip(ps, nexts, strict=True)) for ps in allowed)

    return value(BLOCKS, (1.0,) * len(stake_list))


@pytest.mark.parametrize('margin', [0.0, 0.2])
def test_no_choice_of_what_happens_next_breaks_the_bound(margin):
    # exact, without chance; and a wager that pays too much is found out by the same computation
    alpha = 0.3
    right = worst_case(margin, 1 / alpha, paid=margin)
    wrong = worst_case(margin, 1 / alpha, paid=margin + 0.2)
    assert 0 < right <= alpha < wrong
