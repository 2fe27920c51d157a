# SPDX-License-Identifier: Apache-2.0
"""The dashboard with a real learner: progress, silence."""

from __future__ import annotations

import signal

import pytest
from support.learner.learner_node_rig import LearnerNodeRig
from support.processes.stopped_process import halt

NODE = '/learner'
PROGRESS, LOSS = 0.42, 0.119
WAITS = 'waits for 1 more episode (1 of 2); the service ~/start_round begins one now'
pytestmark = pytest.mark.long


@pytest.fixture
def learner_rig(node, processes, tmp_path):
    rig = LearnerNodeRig(node, processes, tmp_path)
    yield rig
    # a trainer that waits could not end
    rig.gate.touch()


def row_with(viewer, what: str, **fields: object):
    def found(document):
        row = document['learners'].get(NODE)
        return row and all(row.get(key) == value for key, value in fields.items()) and row

    return viewer.wait(found, what)


@pytest.mark.slow
def test_a_learner_is_shown_hangs_and_is_heard_of_again(learner_rig, start_dashboard):
    process = learner_rig.start()
    learner_rig.record('a')
    viewer = start_dashboard().view()
    row = row_with(viewer, 'it waits', state='WAITING', text=WAITS)
    assert (row['episodes_new'], row['episodes_wanted']) == (1, 2)
    assert not row['is_running'] and not {'progress', 'loss', 'remaining_s'} & set(row)
    halt(process)
    try:
        viewer.wait(lambda d: 'silent_since_ms' in d['learners'][NODE], 'it is silent')
        viewer.wait_for_incident('silent', 'error', 'the learner is silent: it hangs')
    finally:
        process.send_signal(signal.SIGCONT)
    viewer.wait(lambda d: 'silent_since_ms' not in d['learners'][NODE], 'it is heard of again')


@pytest.mark.alone
@pytest.mark.limit_s(900)
def test_the_progress_of_a_training_and_its_version_are_shown(learner_rig, start_dashboard):
    pytest.importorskip('lerobot')
    pytest.importorskip('torch')
    rig = learner_rig
    rig.start()
    viewer = start_dashboard().view()
    rig.record('a', 'b')
    rig.wait_for_training()
    row = row_with(viewer, 'it trains', state='TRAINING', progress=PROGRESS, loss=LOSS)
    assert row['is_running'] and row['round'] == 1 and row['remaining_s'] >= 0
    assert row['parent'].startswith('reach@')
    rig.gate.touch()
    rig.wait(rig.ids, 'a version is published')
    row = viewer.wait(
        lambda d: (found := d['learners'][NODE])['latest'] and found, 'the version is shown'
    )
    assert row['latest'] == rig.ids()[0]
