"""
Nodes that find each other by a discovery server alone, with the profile of the package: robots are
served, nobody else sees them, and the death of the discovery server stops none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
import os
import shutil
import socket
import subprocess

from conftest import wait_until
from edge_rig import Seen
import pytest
from rclpy.node import Node

from lerobot_serve.cli.processes import fleet
from lerobot_serve.ros.runtime import Runtime
from lerobot_serve_interfaces.msg import EdgeState

PROGRAM = shutil.which('fast-discovery-server')
HOST, ROBOT = '127.0.0.1', '/robot_1'
# more than the queue of a robot and a chunk hold together
ACTIONS = 150
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason='fast-discovery-server, a program of Fast DDS, is not in the PATH'
)


@pytest.fixture
def stranger(node) -> Node:
    """A node of the same domain that asks no discovery server."""
    return node


@pytest.fixture
def discovery_server(stranger, monkeypatch, tmp_path) -> Iterator[subprocess.Popen]:
    """Somebody who tells everybody that is started from now on of the others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    monkeypatch.setenv('ROS_DISCOVERY_SERVER', f'{HOST}:{port}')
    monkeypatch.setenv('ROS_SUPER_CLIENT', 'TRUE')
    command = [PROGRAM, '-i', '0', '-l', HOST, '-p', str(port)]
    with (tmp_path / 'discovery_server.log').open('w') as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def seen(discovery_server) -> Iterator[Seen]:
    """What an onlooker of the robot sees who asks the discovery server, too."""
    opened = Runtime([])
    onlooker = Node('onlooker', context=opened.context)
    opened.add(onlooker)
    opened.spin_in_background()
    yield Seen(onlooker, f'{ROBOT}/edge_controller')
    opened.close()


def test_robots_are_served_and_go_on_without_it(
    seen, stranger, discovery_server, sim_arm_yaml, tmp_path
):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    with fleet(tmp_path, dict(os.environ)) as started:
        started.start('server', 'policy_server')
        started.start('arm', 'sim_robot', namespace=ROBOT)
        started.start('edge', 'edge_controller', namespace=ROBOT, robot_file=sim_arm_yaml)
        wait_until(
            lambda: seen.last.state == EdgeState.STREAMING and seen.played, 'the robot is served'
        )
        # not because all of them shout
        assert 'edge_controller' not in stranger.get_node_names()
        discovery_server.kill()
        discovery_server.wait()
        played = len(seen.played)
        wait_until(lambda: len(seen.played) > played + ACTIONS, 'the robot goes on')
        assert seen.last.state == EdgeState.STREAMING
        assert started.ended() == {}
