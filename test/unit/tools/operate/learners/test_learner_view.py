# SPDX-License-Identifier: Apache-2.0
"""Learners as text, JSON and changes, in every phase."""

from __future__ import annotations

import json
import math

import pytest
from support.learner.shown_learner import TRAINS
from support.tools.operator_states import changed, learner_of

from lerobot_serve.contract.records import DropCount
from lerobot_serve.tools.operate.learners.learner_state import (
    LEARNER_PHASES,
    LearnerView,
    NO_STATE,
)
from lerobot_serve.tools.operate.learners.learner_view import (
    as_json,
    as_text,
    changes,
    PHASE_WORDS,
    progress_text,
    time_text,
)

UNKNOWN = dict.fromkeys(('progress', 'loss', 'remaining_s'), math.nan)
WAITS = changed(TRAINS, state='WAITING', text='waits for 33 more', **UNKNOWN)


def in_phase(phase: str, **more: float) -> LearnerView:
    known = changed(TRAINS, state=phase) if phase != NO_STATE else LearnerView(TRAINS.node)
    return changed(known, **more)


BAR = '[#############-----------------]'
# phase -> its first line, whether its progress is shown
FIRST_LINES = {
    'WAITING': ('waiting, last round 3', False),
    'CONVERTING': ('converting episodes, round 3', True),
    'TRAINING': ('training, round 3', True),
    'PUBLISHING': ('publishing, round 3', True),
    'PAUSED': ('paused, last round 3', False),
    # of a newer learner
    'unknown (9)': ('unknown (9), last round 3', False),
}


def test_every_phase_has_words():
    assert {*PHASE_WORDS} == {*LEARNER_PHASES, NO_STATE}
    assert {*LEARNER_PHASES} < {*FIRST_LINES}


@pytest.mark.parametrize(('phase', 'line'), FIRST_LINES.items())
def test_each_phase_is_shown_with_all_that_is_known(phase, line):
    words, has_progress = line
    shown = as_text([in_phase(phase)]).splitlines()
    progress = [f'  progress   {BAR} 42 %, loss 0.03124, about 12 min left']
    assert shown == [
        f'/learner: {words}',
        *(progress if has_progress else []),
        '  episodes   17 of 50 new, 120 in all',
        '  parent     act@1',
        '  published  act@2',
        '  dropped    1 missing, 12 other_host',
        '  round 3: trains',
    ]


@pytest.mark.parametrize('phase', [*FIRST_LINES])
def test_a_silent_learner_has_its_age_and_no_progress_in_each_phase(phase):
    silent = in_phase(phase, silent_s=12.4)
    shown = as_text([silent])
    assert shown.startswith(
        '/learner: silent for 12 s: it ended, hangs, or its link is cut; last state: '
        f'{FIRST_LINES[phase][0]}\n'
    )
    assert '42 %' not in shown and 'loss' not in shown and 'left' not in shown
    (row,) = as_json([silent])
    assert row['silent_s'] == 12.4 and row['phase'] == phase
    assert row['progress'] is row['loss'] is row['remaining_s'] is None


def test_a_learner_that_never_sent_a_state_is_one_line():
    mute = LearnerView('/learner', silent_s=130.0)
    assert as_text([mute]) == '/learner: silent for 2 min: it ended, hangs, or its link is cut'


def test_before_the_first_round_nothing_is_invented():
    new = learner_of('/learner', 'WAITING', episodes_wanted=50)
    assert as_text([new]).splitlines() == [
        '/learner: waiting',
        '  episodes   0 of 50 new, 0 in all',
        '  parent     none',
        '  published  none yet',
    ]


def test_without_a_learner_there_is_nothing():
    assert as_text([]) == '' and as_json([]) == [] and changes([], []) == []


@pytest.mark.parametrize(
    ('values', 'shown'),
    [
        ({}, 'not known yet'),
        ({'progress': 0.0}, f'[{"-" * 30}] 0 %'),
        # 100 % is the end
        ({'progress': 0.999}, f'[{"#" * 30}] 99 %'),
        ({'progress': 1.0, 'remaining_s': 0.0}, f'[{"#" * 30}] 100 %, about 0 s left'),
        ({'loss': 2.0}, 'not known yet, loss 2'),
        ({'loss': math.inf}, 'not known yet, loss is infinite'),
    ],
)
def test_progress_shows_what_is_known(values, shown):
    assert progress_text(changed(TRAINS, **(UNKNOWN | values))) == shown


@pytest.mark.parametrize(
    ('seconds', 'shown'),
    [
        *((0.4, '0 s'), (119.4, '119 s'), (120.0, '2 min'), (3600.0, '60 min')),
        *((7080.0, '118 min'), (7200.0, '2 h 0 min'), (9000.0, '2 h 30 min')),
    ],
)
def test_a_time_left_has_the_unit_that_people_read(seconds, shown):
    assert time_text(seconds) == shown


def test_json_is_an_object_for_each_learner_and_valid():
    found = json.loads(json.dumps(as_json([TRAINS, WAITS]), allow_nan=False))
    assert [each['phase'] for each in found] == ['TRAINING', 'WAITING']
    assert found[0]['dropped'] == {'missing': 1, 'other_host': 12}
    assert (found[0]['progress'], found[0]['loss'], found[0]['remaining_s']) == (
        *(0.42, 0.03124, 750.0),
    )
    assert found[1]['progress'] is None and found[0]['silent_s'] is None


CHANGED = {
    'a phase': (WAITS, TRAINS, 'training, round 3, 42 %, loss 0.03124, about 12 min left'),
    'a tenth': (TRAINS, changed(TRAINS, progress=0.5), 'training, round 3, 50 %'),
    'a first share': (changed(TRAINS, progress=math.nan), TRAINS, 'training, round 3, 42 %'),
    'a round': (TRAINS, changed(TRAINS, round=4), 'training, round 4'),
    'a parent': (WAITS, changed(WAITS, parent='act@2'), 'waiting, last round 3. waits for'),
    'a version': (TRAINS, changed(WAITS, latest='act@9'), '; published act@9. waits for 33 more'),
    'a failure': (TRAINS, changed(WAITS, text='round 3 failed: x'), '. round 3 failed: x'),
    'silence': (TRAINS, changed(TRAINS, silent_s=4.0), 'silent for 4 s: it ended, hangs'),
    'silence while it waits': (WAITS, changed(WAITS, silent_s=4.0), 'silent for 4 s'),
    'heard again': (changed(TRAINS, silent_s=4.0), TRAINS, 'heard of again, training, round 3'),
}


@pytest.mark.parametrize(('old', 'new', 'text'), CHANGED.values(), ids=CHANGED)
def test_a_change_is_one_line(old, new, text):
    (line,) = changes([old], [new])
    assert line.startswith('/learner: ') and text in line


UNCHANGED = {
    'the same': TRAINS,
    'a share within its tenth': changed(TRAINS, progress=0.49, loss=0.02, remaining_s=9.0),
    'episodes': changed(TRAINS, episodes=121, episodes_new=18, text='waits for 32 more'),
    'drops': changed(TRAINS, dropped=()),
}


@pytest.mark.parametrize('new', UNCHANGED.values(), ids=UNCHANGED)
def test_what_changes_all_the_time_makes_no_line(new):
    assert changes([TRAINS], [new]) == []


def test_growing_silence_is_one_line():
    silent = changed(TRAINS, silent_s=4.0)
    assert changes([silent], [changed(silent, silent_s=9.0)]) == []


def test_a_new_learner_is_a_line_and_each_learner_has_its_own():
    other = changed(WAITS, node='/other')
    assert len(changes([], [TRAINS])) == 1
    (line,) = changes([TRAINS], [TRAINS, other])
    assert line == '/other: waiting, last round 3. waits for 33 more'


def test_names_and_texts_of_the_network_control_no_terminal():
    nasty = '\x1b[2J\nforged'
    texts = dict.fromkeys(('text', 'parent', 'latest'), nasty)
    learner = changed(TRAINS, node=f'/{nasty}', dropped=(DropCount(nasty, 1),), **texts)
    plain = changed(TRAINS, dropped=(DropCount('x', 1),))
    shown = as_text([learner])
    assert '\x1b' not in shown
    assert len(shown.splitlines()) == len(as_text([plain]).splitlines())
    (line,) = changes([], [learner])
    assert line.isprintable()
