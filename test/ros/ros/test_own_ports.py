# SPDX-License-Identifier: Apache-2.0
"""
A node that ends while Fast DDS replaces one of its ports ends all the same, and orderly. Without
the wait it crashes or hangs, in Fast DDS, at some of these instants.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from support.middleware.dead_port import leave_locked, leave_marked
from support.waiting import wait_until

from lerobot_serve.shared_memory.ports import ports_of

ENDS = """
import sys
from rclpy.node import Node
from lerobot_serve.ros.process.node_runtime import NodeRuntime
runtime = NodeRuntime([])
runtime.add(Node('ends', context=runtime.context))
runtime.spin_in_background()
print('runs', flush=True)
sys.stdin.readline()
runtime.close()
print('closed', flush=True)
"""
# that of the data of topics, and that of discovery
PORTS = 2
END_S = 30.0


@pytest.fixture
def ending():
    """A process with a node, which ends when a line is written to it."""
    running = subprocess.Popen(
        [sys.executable, '-c', ENDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.mark.parametrize('delay_s', [0.0, 0.2, 1.0])
@pytest.mark.parametrize('damage', [leave_locked, leave_marked])
def test_a_node_ends_while_its_ports_are_replaced(ending, damage, delay_s: float):
    assert ending.stdout.readline() == 'runs\n'
    wait_until(lambda: len(ports_of(ending.pid)) >= PORTS, 'the ports are open')
    for file, number in ports_of(ending.pid).items():
        damage(file, number)
    time.sleep(delay_s)
    printed, errors = ending.communicate('\n', END_S)
    assert (ending.returncode, printed) == (0, 'closed\n'), errors


def test_a_node_with_sound_ports_waits_for_nothing(ending):
    assert ending.stdout.readline() == 'runs\n'
    printed, errors = ending.communicate('\n', END_S)
    assert (ending.returncode, printed, errors) == (0, 'closed\n', '')
