# SPDX-License-Identifier: Apache-2.0
"""In which stage a loop is, and which replies of an episode are of another policy unflagged."""

from __future__ import annotations

import pytest

from benchmarks.loop_fleet.judging import faults_of_store, unflagged_changes
from benchmarks.loop_fleet.stages import (
    Canary,
    Learner,
    LONGEST_S,
    LoopStage,
    Seen,
    stages_of,
    VerbFollower,
)
from lerobot_serve.contract.data_path.chunk import ReplySummary
from lerobot_serve.contract.data_path.header import Envelope, Header
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.tools.loop.conductor import DONE, entry_text, GATE_RESULTS
from lerobot_serve.tools.loop.decisions import LoopStep
from lerobot_serve.tools.loop.journal import LoopEvent

V1, V2 = 'reach@0000000000000001', 'reach@0000000000000002'


def test_each_stage_has_a_longest_time():
    assert set(LONGEST_S) == set(LoopStage)


@pytest.mark.parametrize(
    ('seen', 'expected'),
    [
        (Seen(), set()),
        (Seen(Learner.WAITING), {LoopStage.GATHERING}),
        (Seen(Learner.WAITING, Canary.WAITING), set()),
        (Seen(Learner.CONVERTING), {LoopStage.CONVERTING}),
        (Seen(Learner.WAITING, verb='gate'), {LoopStage.GATING}),
        (Seen(Learner.TRAINING, Canary.RUNNING), {LoopStage.TRAINING, LoopStage.TRIAL}),
        (Seen(Learner.PUBLISHING, Canary.UNDECIDED), {LoopStage.PUBLISHING, LoopStage.TRIAL}),
        (Seen(Learner.WAITING, Canary.PROMOTED), {LoopStage.WATCH}),
        (Seen(Learner.WAITING, Canary.PROMOTED, 'finish'), {LoopStage.FINISHING}),
    ],
)
def test_each_stage_is_seen(seen, expected):
    assert stages_of(seen) == expected


@pytest.mark.parametrize('step', [LoopStep.GATE, LoopStep.START, LoopStep.FINISH])
def test_a_verb_runs_from_its_command_to_its_result(step):
    results = (
        [*GATE_RESULTS.values(), LoopEvent.GATE_HELD] if step is LoopStep.GATE else [DONE[step]]
    )
    for event in (*results, f'{step.value}_failed', 'loop_started'):
        follower = VerbFollower()
        follower.add(f'loop        | loop: {step.value} {V1}: lerobot-serve ')
        assert follower.verb == ''
        follower.add('verb\nrecorder | 3 messages\n')
        assert follower.verb == step.value
        follower.add(f'loop        | loop: {entry_text(event, V1, "why")}\n')
        assert follower.verb == ''


def reply(seq: int, policy: str, flags: int = 0, episode: str = 'e1') -> ReplySummary:
    header = Header(seq, 0, 1, 1, 1, 2, flags)
    return ReplySummary(Envelope(header, 'robot_1', episode), 0, Status.OK, 'a', policy)


def test_a_change_of_policy_needs_its_flag():
    assert unflagged_changes([reply(1, V1), reply(2, V1), reply(3, V2, episode='e2')]) == []
    assert unflagged_changes([reply(1, V1), reply(2, V2, Flag.POLICY_CHANGED)]) == []
    # a server may have another name for a policy
    assert unflagged_changes([reply(1, V1), reply(2, f'mine@{V1[-16:]}')]) == []
    (fault,) = unflagged_changes([reply(3, V2), reply(1, V1), reply(2, V1)])
    assert 'request 3 of episode e1' in fault


def test_what_was_served_is_a_whole_version_or_the_first_policy(tmp_path):
    assert faults_of_store(tmp_path, [V1], V1) == []
    (fault,) = faults_of_store(tmp_path, [V1, V2], V1)
    assert fault == f'{V2} was served and is not a whole version'
    (tmp_path / V2).mkdir()
    assert len(faults_of_store(tmp_path, [V1, V2], V1)) == 2
