# SPDX-License-Identifier: Apache-2.0
"""
`ROS_STATIC_PEERS` finds more than the first four ROS processes of a machine, with our profile.

Two machines, each a network namespace, without multicast between them.
"""

from __future__ import annotations

import sys

import pytest
from support.network.machines import line_of, NetworkUnavailable, running_machines
from support.paths import module_environment

SERVER, ROBOT = '10.77.0.2', '10.77.0.3'
DOMAIN, PROCESSES, LIMIT_S = 5, 8, 30.0
# as many participants as a machine with a fleet has, the one that is searched last
MANY = """
import sys
import rclpy
from rclpy.node import Node
from lerobot_serve.ros.process.fastdds_profile import apply_shipped_profile
apply_shipped_profile()
nodes = []
for number in range(int(sys.argv[1])):
    context = rclpy.Context()
    rclpy.init(context=context, args=[])
    nodes.append(Node(f'node_{number}', context=context))
print('run', flush=True)
sys.stdin.readline()
"""
SEARCH = """
import sys, time
import rclpy
from rclpy.node import Node
from lerobot_serve.ros.process.fastdds_profile import apply_shipped_profile
apply_shipped_profile()
rclpy.init(args=[])
node, end_s = Node('searches'), time.monotonic() + float(sys.argv[2])
wanted = {f'node_{number}' for number in range(int(sys.argv[1]))}
while not wanted <= set(node.get_node_names()) and time.monotonic() < end_s:
    time.sleep(0.1)
print(*sorted(wanted & set(node.get_node_names())), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def machines(tmp_path, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', module_environment()['PYTHONPATH'])
    try:
        with running_machines({'server': SERVER, 'robot': ROBOT}, tmp_path) as running:
            yield running
    except NetworkUnavailable as reason:
        pytest.skip(str(reason))


def script(text: str, *words: object, peers: str = '') -> list[str]:
    variables = ['ROS_AUTOMATIC_DISCOVERY_RANGE=SUBNET', f'ROS_DOMAIN_ID={DOMAIN}']
    if peers:
        variables.append(f'ROS_STATIC_PEERS={peers}')
    return ['env', *variables, sys.executable, '-c', text, *map(str, words)]


def test_the_eighth_process_of_a_machine_is_found(machines):
    many = machines.open('many', 'server', script(MANY, PROCESSES))
    assert line_of(many) == 'run\n'
    search = script(SEARCH, PROCESSES, LIMIT_S, peers=SERVER)
    found = line_of(machines.open('search', 'robot', search), 2 * LIMIT_S)
    assert found.split() == [f'node_{number}' for number in range(PROCESSES)]
