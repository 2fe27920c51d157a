# SPDX-License-Identifier: Apache-2.0
"""The simulated arm as a robot of LeRobot, driven by the expert through LeRobot's interface."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.paths import REPOSITORY

from lerobot_serve.sim.arm import JOINT_NAMES
from lerobot_serve.sim.scene import expert_chunk

pytest.importorskip('lerobot')
compat = pytest.importorskip('lerobot_serve.policies.lerobot.compat')
PLUGIN = REPOSITORY / 'examples' / 'lerobot_robot_reach_sim'
NAMES = [f'{name}.pos' for name in JOINT_NAMES]


@pytest.fixture
def make_arm(monkeypatch, tmp_path):
    """Makes the robot as LeRobot does, by the name of its type."""
    # torchvision, as every policy of LeRobot imports it
    compat.lerobot()
    monkeypatch.syspath_prepend(str(PLUGIN))
    from lerobot.robots.config import RobotConfig
    from lerobot.robots.utils import make_robot_from_config
    import lerobot_robot_reach_sim  # noqa: F401

    def make(**given: object):
        config = RobotConfig.get_choice_class('reach_sim')(calibration_dir=tmp_path, **given)
        robot = make_robot_from_config(config)
        robot.connect()
        return robot

    return make


def test_names_and_pictures_are_those_of_the_shipped_policies(make_arm):
    arm = make_arm()
    assert [*arm.action_features] == NAMES
    seen = arm.get_observation()
    assert list(seen) == [*NAMES, 'front', 'wrist'] == list(arm.observation_features)
    policy = json.loads((REPOSITORY / 'config/policies/reach/policy.json').read_text())
    assert [*arm.action_features] == policy['action_names'] == policy['state_names']
    for camera in policy['cameras']:
        picture = seen[camera['name'].removeprefix('observation.images.')]
        assert (picture.dtype, picture.shape) == (
            np.uint8,
            (camera['height'], camera['width'], 3),
        )


def attempts(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_an_attempt_ends_on_the_target_or_after_its_time(make_arm, tmp_path, capsys):
    file = tmp_path / 'results'
    arm = make_arm(seed=5, results=str(file))

    def act(position) -> None:
        action = dict(zip(NAMES, map(float, position), strict=True))
        assert arm.send_action(action) == action

    scene = arm._scene
    for row in expert_chunk(scene.arm.positions, scene.target_xy, 90, 1 / 30):
        if file.exists():
            break
        act(row)
    (first,) = attempts(file)
    assert first['success']
    assert first['distance_m'] < 0.02
    here = scene.arm.positions
    for _ in range(8 * 30):
        act(here)
    _, second = attempts(file)
    assert second == {'success': False, 'duration_s': 8.0, 'distance_m': second['distance_m']}
    printed = capsys.readouterr().out
    assert f'attempt 1: on the target after {first["duration_s"]:.1f} s of actions' in printed
    assert 'attempt 2: NOT on the target after 8.0 s of actions' in printed
    with pytest.raises(KeyError, match='gripper'):
        arm.send_action(dict.fromkeys(NAMES[:-1], 0.0))


def test_joints_in_another_order_move_as_named(make_arm):
    usual, other = make_arm(), make_arm(joints=[*reversed(JOINT_NAMES)])
    assert [*other.action_features] == NAMES[::-1] == [*other.get_observation()][:6]
    action = {name: 0.1 * number for number, name in enumerate(NAMES)}
    for _ in range(60):
        usual.send_action(action)
        other.send_action(dict(reversed(action.items())))
    seen = usual.get_observation()
    assert [seen[name] for name in NAMES] == pytest.approx([*action.values()], abs=1e-3)
    assert [other.get_observation()[name] for name in NAMES] == [seen[name] for name in NAMES]
    with pytest.raises(ValueError, match='in any order'):
        make_arm(joints=['shoulder_pan'])
