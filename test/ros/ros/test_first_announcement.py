# SPDX-License-Identifier: Apache-2.0
"""
A new node finds the others by their responses to its first announcement, with our profile.

The others announce themselves once a minute here, so that nothing else can lead to them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.paths import module_environment

from lerobot_serve.ros.process.fastdds_profile import profile_variable, shipped_profile
from lerobot_serve.tools.processes import end_with_parent

NODES, LIMIT_S = 10, 60.0
# on a busy machine a response may still be faster
MAY_MISS = 1
WAITS = """
import sys
import rclpy
from rclpy.node import Node
rclpy.init(args=[])
node = Node('waits')
print('run', flush=True)
sys.stdin.readline()
"""
SEARCH = """
import sys, time
import rclpy
from rclpy.node import Node
for number in range(int(sys.argv[1])):
    context = rclpy.Context()
    rclpy.init(args=[], context=context)
    node, end_s = Node(f'searches_{number}', context=context), time.monotonic() + 2.0
    while not (is_found := 'waits' in node.get_node_names()) and time.monotonic() < end_s:
        time.sleep(0.01)
    node.destroy_node()
    context.try_shutdown()
    print('found' if is_found else 'missed', flush=True)
"""


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    profile = shipped_profile().read_text()
    for ours, slow in (
        ('<leaseDuration><sec>5<', '<leaseDuration><sec>150<'),
        ('<leaseAnnouncement><sec>1<', '<leaseAnnouncement><sec>60<'),
    ):
        assert ours in profile
        profile = profile.replace(ours, slow)
    file = tmp_path / 'profile.xml'
    file.write_text(profile)
    return {**os.environ, **module_environment(), profile_variable(): str(file)}


@pytest.mark.slow
def test_a_new_node_finds_the_others_at_once(environment):
    with subprocess.Popen(
        end_with_parent([sys.executable, '-c', WAITS]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as waits:
        assert waits.stdout.readline() == 'run\n'
        search = subprocess.run(
            end_with_parent([sys.executable, '-c', SEARCH, str(NODES)]),
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            timeout=LIMIT_S,
            check=True,
        )
    assert search.stdout.count('found') >= NODES - MAY_MISS, search.stdout
