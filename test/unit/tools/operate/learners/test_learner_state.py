# SPDX-License-Identifier: Apache-2.0
"""Which numbers of a learner are shown: a message may have any float."""

from __future__ import annotations

import math

import pytest
from support.tools.operator_states import learner_of

from lerobot_serve.learner.rounds.states import Phase
from lerobot_serve.tools.operate.learners.learner_state import (
    known_loss,
    known_remaining_s,
    known_share,
    LEARNER_PHASES,
    NO_STATE,
    REMAINING_LIMIT_S,
)

NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize(
    ('given', 'shown'),
    [
        *((0.0, 0.0), (0.42, 0.42), (1.0, 1.0), (1.5, 1.0), (-0.1, 0.0), (3e38, 1.0)),
        *((NAN, None), (INFINITY, None), (-INFINITY, None)),
    ],
)
def test_a_share_is_within_its_bounds_or_not_known(given, shown):
    assert known_share(given) == shown


@pytest.mark.parametrize(
    ('given', 'shown'),
    [(0.03, 0.03), (-2.0, -2.0), (NAN, None), (INFINITY, None), (-INFINITY, None)],
)
def test_a_loss_is_a_number_or_not_known(given, shown):
    assert known_loss(given) == shown


@pytest.mark.parametrize(
    ('given', 'shown'),
    [
        *((0.0, 0.0), (90.0, 90.0), (REMAINING_LIMIT_S, REMAINING_LIMIT_S)),
        *((-1.0, None), (2 * REMAINING_LIMIT_S, None), (NAN, None), (INFINITY, None)),
    ],
)
def test_a_time_left_is_an_estimate_or_not_known(given, shown):
    assert known_remaining_s(given) == shown


# state -> whether a round runs; a silent learner's state is old
RUNS = {
    'WAITING': False,
    'CONVERTING': True,
    'TRAINING': True,
    'PUBLISHING': True,
    'PAUSED': False,
    NO_STATE: False,
    'unknown (9)': False,
}


def test_the_table_has_every_phase():
    assert tuple(phase.name for phase in Phase) == LEARNER_PHASES
    assert {*LEARNER_PHASES, NO_STATE} < {*RUNS}


@pytest.mark.parametrize(('phase', 'runs'), RUNS.items())
def test_a_round_runs_in_these_phases(phase, runs):
    assert learner_of('/learner', phase).is_running is runs
    assert not learner_of('/learner', phase, silent_s=4.0).is_running
