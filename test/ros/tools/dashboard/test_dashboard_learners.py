# SPDX-License-Identifier: Apache-2.0
"""The dashboard with a real learner that waits, hangs and is heard of again."""

from __future__ import annotations

import signal

import pytest
from support.learner.learner_node_rig import LearnerNodeRig
from support.processes.stopped_process import halt

NODE = '/learner'
WAITS = 'waits for 1 more episode (1 of 2); the service ~/start_round begins one now'
pytestmark = pytest.mark.long


@pytest.fixture
def learner_rig(node, processes, tmp_path):
    rig = LearnerNodeRig(node, processes, tmp_path)
    yield rig
    # a trainer that waits could not end
    rig.gate.touch()


@pytest.mark.slow
def test_a_learner_is_shown_hangs_and_is_heard_of_again(learner_rig, start_dashboard):
    process = learner_rig.start()
    learner_rig.record('a')
    viewer = start_dashboard().view()
    row = viewer.wait(
        lambda d: (found := d['learners'].get(NODE)) and found['text'] == WAITS and found,
        'it waits',
    )
    assert row['state'] == 'WAITING'
    assert (row['episodes_new'], row['episodes_wanted']) == (1, 2)
    assert not row['is_running'] and not {'progress', 'loss', 'remaining_s'} & set(row)
    halt(process)
    try:
        viewer.wait(lambda d: 'silent_since_ms' in d['learners'][NODE], 'it is silent')
        viewer.wait_for_incident('silent', 'error', 'the learner is silent: it hangs')
    finally:
        process.send_signal(signal.SIGCONT)
    viewer.wait(lambda d: 'silent_since_ms' not in d['learners'][NODE], 'it is heard of again')
