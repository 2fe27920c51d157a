# SPDX-License-Identifier: Apache-2.0
"""The row of a learner in the document of the page, in every phase and with hostile values."""

from __future__ import annotations

import json
import math

import pytest
from support.learner import shown_learner
from support.tools.operator_states import changed, learner_of

from lerobot_serve.contract.records import DropCount
from lerobot_serve.tools.dashboard.document.printed_numbers import TEXT_LIMIT
from lerobot_serve.tools.dashboard.document.rows import learner_row
from lerobot_serve.tools.operate.learners.learner_state import LEARNER_PHASES

TRAINS = changed(
    shown_learner.TRAINS,
    progress=0.42049,
    loss=0.0312445,
    remaining_s=750.6,
    dropped=(DropCount('other_host', 12),),
)
NODE = TRAINS.node


def test_all_that_a_learner_shows_is_in_its_row_with_rounded_numbers():
    assert learner_row(TRAINS) == {
        'learner': '',
        'state': 'TRAINING',
        'text': 'round 3: trains',
        'round': 3,
        'is_running': True,
        'parent': 'act@1',
        'latest': 'act@2',
        'episodes': 120,
        'episodes_new': 17,
        'episodes_wanted': 50,
        'progress': 0.42,
        'loss': 0.0312,
        'has_diverged': False,
        'remaining_s': 751,
        'dropped': {'other_host': 12},
    }


@pytest.mark.parametrize('phase', LEARNER_PHASES)
def test_each_phase_says_whether_a_round_runs(phase):
    learner = learner_of(NODE, phase)
    row = learner_row(learner)
    assert (row['state'], row['is_running']) == (phase, learner.is_running)


def test_what_is_not_known_is_absent():
    row = learner_row(learner_of(NODE, 'TRAINING'))
    assert not {'progress', 'loss', 'remaining_s'} & set(row)
    assert learner_row(learner_of(NODE, 'TRAINING', loss=math.inf))['has_diverged']


def test_hostile_texts_and_numbers_are_bounded_and_valid_json():
    long = '<script>' * TEXT_LIMIT
    hostile = learner_of(
        NODE,
        'TRAINING',
        text=long,
        parent=long,
        latest=long,
        loss=3.4e38,
        dropped=(DropCount(long, 2**64 - 1),),
    )
    row = learner_row(hostile)
    json.dumps(row, allow_nan=False)
    # no number that a person reads
    assert 'loss' not in row
    (reason,) = row['dropped']
    assert {len(row[each]) for each in ('text', 'parent', 'latest')} == {TEXT_LIMIT}
    assert len(reason) == TEXT_LIMIT
