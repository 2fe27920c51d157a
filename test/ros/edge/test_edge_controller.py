# SPDX-License-Identifier: Apache-2.0
"""An edge controller with a simulated robot: what it does with a server, and without."""

from __future__ import annotations

from importlib.util import find_spec
import subprocess
import sys

import pytest
from support.nodes.edge_rig import Seen
from support.nodes.played_robot import ROBOT
from trajectory_msgs.msg import JointTrajectory

from lerobot_serve.ros import qos
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve_interfaces.msg import EdgeState

MAX_AGE_S = 1.5
REACH = shared_file('config/policies/reach')
SHAPE = 'joints=6,chunk=30,cameras=front:48x64+wrist:48x64,fps=30'


@pytest.fixture
def seen(node) -> Seen:
    return Seen(node)


@pytest.fixture
def commands(node) -> list[JointTrajectory]:
    """What the robot is told."""
    heard: list[JointTrajectory] = []
    node.create_subscription(
        JointTrajectory, f'{ROBOT}/joint_trajectory', heard.append, qos.COMMAND
    )
    return heard


def start_robot(processes, **edge: object) -> None:
    given = {'max_action_age_s': MAX_AGE_S, 'request_timeout_s': 0.3, 'status_period_s': 0.05}
    processes.start(
        'edge',
        'edge_controller',
        namespace=ROBOT,
        reconnect_initial_backoff_s=0.1,
        **{**given, **edge},
    )
    processes.start('sim', 'sim_robot', namespace=ROBOT, image_height=64, image_width=64)


torch_policy = pytest.mark.skipif(
    find_spec('torch') is None,
    reason='torch is not installed (TORCH=none)',
)


@torch_policy
def test_it_streams_and_every_command_tells_where_it_came_from(processes, seen, wait_until):
    processes.start('policy_server', 'policy_server', policy_path=REACH)
    start_robot(processes)
    wait_until(lambda: len(seen.played) > 30, 'actions are executed')
    wait_until(lambda: seen.last.state == EdgeState.STREAMING, 'it streams')
    action = seen.played[-1]
    assert action.client_id == 'robot_1'
    assert action.policy.startswith('reach@')
    assert action.slot == 'prod'
    assert 0 < action.age_s <= MAX_AGE_S
    assert action.seq > 0
    assert action.episode_id.startswith('robot_1-')
    assert len(action.raw) == len(action.commanded) == 6


def test_nothing_is_commanded_when_nothing_was_ever_received(
    processes, seen, commands, wait_until
):
    start_robot(processes)
    wait_until(lambda: seen.last.control_steps > 30, 'control steps pass')
    assert seen.last.state == EdgeState.CONNECTING
    wait_until(lambda: 'policy_server' in seen.last.reason, 'the reason is visible')
    assert not commands
    assert not seen.executed


def test_the_edge_and_the_router_hold_no_torch():
    code = (
        'import sys, lerobot_serve.edge.node, lerobot_serve.router.node; '
        'bad = {"torch", "safetensors", "lerobot_serve.policies"} & set(sys.modules); '
        'sys.exit(str(bad) if bad else 0)'
    )
    result = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
