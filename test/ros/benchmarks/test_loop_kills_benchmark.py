# SPDX-License-Identifier: Apache-2.0
"""The smallest whole loop, of which a learner, a server and the router are killed."""

from __future__ import annotations

import random

import pytest

from benchmarks.loop_fleet.fleet import PROCESSES
from benchmarks.loop_fleet.killing import kill_often, pairs
from benchmarks.loop_fleet.stages import LoopStage

pytest.importorskip('torch', reason='the shipped policies run on torch')
pytest.importorskip('lerobot', reason='LeRobot writes the dataset')


def test_all_pairs_come_before_the_first_one_comes_again():
    every = len(PROCESSES) * len(LoopStage)
    drawn = list(pairs(every + 5, random.Random(1)))
    assert len(drawn) == every + 5
    assert len(set(drawn[:every])) == every


@pytest.mark.release
@pytest.mark.limit_s(3600)
def test_a_loop_whose_processes_are_killed_goes_on_and_leaves_nothing_half(tmp_path):
    planned = [
        (LoopStage.TRAINING, 'learner'),
        (LoopStage.TRIAL, 'server_b'),
        (LoopStage.FINISHING, 'loop'),
        # only now slot a serves another policy than that of its start
        (LoopStage.GATHERING, 'server_a'),
        (LoopStage.TRIAL, 'router'),
    ]
    found = kill_often(tmp_path / 'fleets', planned, random.Random(3))
    assert [kill.why_not for kill in found.kills] == [''] * len(planned)
    assert found.faults == []
    # several are killed in one round
    assert found.champions >= 2
    assert found.replies and found.episodes
