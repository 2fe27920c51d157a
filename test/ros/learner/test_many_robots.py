# SPDX-License-Identifier: Apache-2.0
"""
Eight robots at once, whose episodes a recorder announces to one learner; it is killed meanwhile.
"""

from __future__ import annotations

import contextlib
import random

import pytest
from support.learner.learner_node_rig import LearnerNodeRig
from support.nodes.recorder_process import recorder
from support.waiting import wait_until

from benchmarks.recording.kills import PlayedRobot
from lerobot_serve.experience.scanning import episodes_in
from lerobot_serve.learner.memory import Memory
from lerobot_serve.learner.rounds.states import Phase

pytestmark = [pytest.mark.alone, pytest.mark.long]

ROBOTS, EPISODES_EACH, LONGEST_STEPS, LIMIT_S = 8, 6, 20, 120.0
NO_ROUND = 10_000


def start_learner(rig: LearnerNodeRig) -> None:
    rig.states.clear()
    rig.start(episodes_per_round=NO_ROUND)
    rig.wait_for(Phase.WAITING)


def test_each_episode_of_eight_robots_arrives_once_also_over_a_kill(learner_rig, tmp_path):
    rig, root = learner_rig, tmp_path / 'bags'
    names = [f'/line/robot_{number}' for number in range(ROBOTS)]
    robots = [
        PlayedRobot(rig.node, random.Random(number), name, LONGEST_STEPS)
        for number, name in enumerate(names)
    ]
    start_learner(rig)
    with (
        recorder(root, '--strategy', 'episodic', '--outcome-wait', '0.5') as process,
        contextlib.ExitStack() as playing,
    ):
        for robot in robots:
            robot.start()
            playing.callback(robot.stop)
        for name in names:
            topic = f'{name}/edge_controller/executed_action'
            wait_until(lambda t=topic: f'recording {t} ' in process.log, topic, LIMIT_S)
        rig.wait(lambda: rig.state.episodes >= ROBOTS, 'the learner has the first episodes')
        rig.kill()
        # what is announced while there is no learner
        begun = [robot.episodes for robot in robots]
        wait_until(
            lambda: all(
                robot.episodes >= before + EPISODES_EACH
                for robot, before in zip(robots, begun, strict=True)
            ),
            'all robots go on',
            LIMIT_S,
        )
        start_learner(rig)
        wait_until(lambda: rig.state.episodes > sum(begun), 'it catches up', LIMIT_S)
        playing.close()
        assert process.stop() == 0, process.log
        recorded = list(episodes_in(root))
        rig.wait(lambda: rig.state.episodes == len(recorded), 'the learner has all episodes')
    drops = {each.reason: each.count for each in rig.state.dropped}
    rig.kill()
    memory = Memory(tmp_path / 'learner')
    try:
        learned = sorted(memory.episodes(), key=lambda each: each.sha256)
    finally:
        memory.close()
    assert learned == sorted(recorded, key=lambda each: each.sha256)
    assert len({each.sha256 for each in learned}) == len(learned)
    assert {each.client_id for each in learned} == {name.rpartition('/')[2] for name in names}
    # what the restarted learner heard again counts once
    assert set(drops) <= {'repeated', 'not_selected'}
