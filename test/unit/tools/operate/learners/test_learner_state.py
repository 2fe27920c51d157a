# SPDX-License-Identifier: Apache-2.0
"""Which numbers of a learner are shown: a message may have any float."""

from __future__ import annotations

from itertools import product
import math

import pytest
from support.tools.operator_states import learner_of

from lerobot_serve.learner.rounds.states import Phase
from lerobot_serve.tools.operate.learners.learner_state import (
    LEARNER_PHASES,
    NO_STATE,
    REMAINING_LIMIT_S,
)

NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize(
    ('field', 'given', 'shown'),
    [
        *(('progress', each, each) for each in (0.0, 0.42, 1.0)),
        *(('progress', 1.5, 1.0), ('progress', -0.1, 0.0), ('progress', 3e38, 1.0)),
        *(('loss', each, each) for each in (0.03, -2.0)),
        *(('remaining_s', each, each) for each in (0.0, 90.0, REMAINING_LIMIT_S)),
        *(('remaining_s', each, None) for each in (-1.0, 2 * REMAINING_LIMIT_S)),
        *product(('progress', 'loss', 'remaining_s'), (NAN, INFINITY, -INFINITY), (None,)),
    ],
)
def test_a_number_is_within_its_bounds_or_not_known(field, given, shown):
    assert getattr(learner_of('/learner', 'TRAINING', **{field: given}), field) == shown


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
