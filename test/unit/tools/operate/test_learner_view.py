# SPDX-License-Identifier: Apache-2.0
"""Learners as text, JSON and changes, in every phase, with any float, and when one is silent."""

from __future__ import annotations

from itertools import product
import math

import pytest
from support.learner.shown_learner import TRAINS
from support.tools.operator_states import changed, learner_of

from lerobot_serve.contract.records import DropCount
from lerobot_serve.learner.rounds.states import Phase
from lerobot_serve.tools.operate.learners import (
    Arrivals,
    changes,
    Hearing,
    hearing,
    learner_parts,
    LEARNER_PHASES,
    learners_json,
    LearnerView,
    NEW_STATE_S,
    NO_STATE,
    PHASE_WORDS,
    progress_text,
    REMAINING_LIMIT_S,
    SILENT_S,
    time_text,
)
from lerobot_serve.tools.output.report import Report

UNKNOWN = dict.fromkeys(('progress', 'loss', 'remaining_s'), math.nan)
WAITS = changed(TRAINS, state='WAITING', text='waits for 33 more', **UNKNOWN)


def in_phase(phase: str, **more: float) -> LearnerView:
    known = changed(TRAINS, state=phase) if phase != NO_STATE else LearnerView(TRAINS.node)
    return changed(known, **more)


PHASES = [*LEARNER_PHASES, 'unknown (9)']
NASTY = '\x1b[2J\nforged'
LEARNERS = {
    **{phase: in_phase(phase) for phase in PHASES},
    **{f'{phase}, silent': in_phase(phase, silent_s=12.4) for phase in ('WAITING', 'TRAINING')},
    'without a state, silent': LearnerView('/learner', silent_s=130.0),
    'before its first round': learner_of('/learner', 'WAITING', episodes_wanted=50),
    'without numbers': WAITS,
    'texts of the network': changed(
        TRAINS,
        node=f'/{NASTY}',
        dropped=(DropCount(NASTY, 1),),
        **dict.fromkeys(('text', 'parent', 'latest'), NASTY),
    ),
}


def test_every_phase_has_words():
    assert {*PHASE_WORDS} == {*LEARNER_PHASES, NO_STATE}


@pytest.mark.golden
def test_a_learner_is_shown_as_agreed(golden):
    golden.holds_reports(
        'learners',
        {
            name: Report({'learners': learners_json([each])}, list(learner_parts([each])))
            for name, each in LEARNERS.items()
        },
    )


@pytest.mark.parametrize('phase', PHASES)
def test_no_progress_of_a_silent_learner_is_shown(phase):
    (row,) = learners_json([in_phase(phase, silent_s=12.4)])
    assert row['progress'] is row['loss'] is row['remaining_s'] is None


def test_without_a_learner_there_is_nothing():
    assert not [*learner_parts([])] and learners_json([]) == [] and changes([], []) == []


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


def test_a_change_to_a_text_of_the_network_controls_no_terminal():
    (line,) = changes([], [LEARNERS['texts of the network']])
    assert line.isprintable()


OLD_S = 60.0
ROWS = [
    # found, states, arrived, age -> hearing, silent for
    (Arrivals(0.0), Hearing.EXPECTED, None),
    (Arrivals(SILENT_S - 0.1), Hearing.EXPECTED, None),
    (Arrivals(SILENT_S), Hearing.MUTE, SILENT_S),
    (Arrivals(9.0, 1, 0.1, 0.0), Hearing.HEARD, None),
    (Arrivals(9.0, 1, 0.1, SILENT_S), Hearing.HEARD, None),
    (Arrivals(9.0, 1, NEW_STATE_S - 0.1, OLD_S), Hearing.EXPECTED, None),
    (Arrivals(9.0, 1, NEW_STATE_S, OLD_S), Hearing.SILENT, OLD_S),
    # a clock of the future: the age is what was waited
    (Arrivals(9.0, 1, NEW_STATE_S - 0.1, -OLD_S), Hearing.EXPECTED, None),
    (Arrivals(9.0, 1, 5.0, -OLD_S), Hearing.SILENT, 5.0),
    (Arrivals(9.0, 2, SILENT_S, SILENT_S), Hearing.HEARD, None),
    (Arrivals(9.0, 2, SILENT_S + 0.1, SILENT_S + 0.1), Hearing.SILENT, SILENT_S + 0.1),
]


@pytest.mark.parametrize(('arrivals', 'found', 'silent_s'), ROWS)
def test_a_learner_is_silent_by_the_table(arrivals, found, silent_s):
    assert hearing(arrivals) == (found, silent_s)


def test_the_rows_have_every_hearing():
    assert {found for _, found, _ in ROWS} == {*Hearing}


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
