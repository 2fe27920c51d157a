# SPDX-License-Identifier: Apache-2.0
"""
Nodes that find each other by a discovery server alone, with the profile of the package: robots are
served, nobody else sees them, and the death of the discovery server stops none of them.

All that asks it is in processes of its own: Fast DDS remembers the discovery server that it was
once told of as long as a process lives.
"""

from __future__ import annotations

from collections.abc import Iterator
import shutil
import socket
import subprocess
import sys

import pytest
from support.paths import module_environment
from support.waiting import wait_until

from benchmarks.harness.processes import node_processes
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve_interfaces.msg import EdgeState

PROGRAM = shutil.which('fast-discovery-server')
REACH = shared_file('config/policies/reach')
HOST, ROBOT = '127.0.0.1', '/robot_1'
# more than the queue of a robot and a chunk hold together
ACTIONS = 150
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason='fast-discovery-server, a program of Fast DDS, is not in the PATH'
)


@pytest.fixture
def address() -> str:
    """A port of this machine that nobody has at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((HOST, 0))
        return f'{HOST}:{free.getsockname()[1]}'


@pytest.fixture
def discovery_server(address, tmp_path) -> Iterator[subprocess.Popen]:
    """Somebody who tells all who ask it of the others."""
    command = [PROGRAM, '-i', '0', '-l', HOST, '-p', address.partition(':')[2]]
    with (tmp_path / 'discovery_server.log').open('w') as log:
        process = subprocess.Popen(
            end_with_parent(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def told(address) -> dict[str, str]:
    """The environment of those who ask it."""
    return {**module_environment(), 'ROS_DISCOVERY_SERVER': address, 'ROS_SUPER_CLIENT': 'TRUE'}


@pytest.fixture
def onlooker(discovery_server, told) -> Iterator[subprocess.Popen]:
    """Somebody who asks it, too, and looks at the robot."""
    looking = subprocess.Popen(
        [sys.executable, '-m', 'support.nodes.observer_process', f'{ROBOT}/edge_controller'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=told,
    )
    with looking:
        yield looking
        looking.stdin.close()
        looking.wait(20)


def look(onlooker: subprocess.Popen) -> tuple[int, int]:
    """Return the state of the edge, and how many actions of a policy it has played."""
    print(file=onlooker.stdin, flush=True)
    state, played = onlooker.stdout.readline().split()
    return int(state), int(played)


@pytest.mark.slow
def test_robots_are_served_and_go_on_without_it(
    onlooker, told, node, discovery_server, sim_arm_yaml, tmp_path
):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

    def plays_after(count: int) -> bool:
        state, played = look(onlooker)
        return state == EdgeState.STREAMING and played > count

    with node_processes(tmp_path, told) as started:
        started.start('server', 'policy_server', policy_path=REACH)
        started.start('arm', 'sim_robot', namespace=ROBOT)
        started.start('edge', 'edge_controller', namespace=ROBOT, robot_file=sim_arm_yaml)
        wait_until(lambda: plays_after(0), 'the robot is served')
        # not because all of them shout
        assert 'edge_controller' not in node.get_node_names()
        discovery_server.kill()
        discovery_server.wait()
        _, played = look(onlooker)
        wait_until(lambda: plays_after(played + ACTIONS), 'the robot continues')
        assert started.ended() == {}
