"""Our executor, and what other threads do to the entities that it waits for."""

from __future__ import annotations

import sys

import pytest
from rclpy.node import Node
from std_msgs.msg import Empty

from lerobot_serve.ros import qos
from lerobot_serve.ros.runtime import Runtime

TIMES = 300


@pytest.fixture
def runtime():
    before_s = sys.getswitchinterval()
    opened = Runtime([])
    yield opened
    sys.setswitchinterval(before_s)
    opened.close()


def test_entities_may_be_destroyed_while_it_prepares_to_wait(runtime):
    """Reply topics come and go with robots, and another thread may be the one that sees to it."""
    node = Node('test', context=runtime.context)
    runtime.add(node)
    # keeps it preparing
    node.create_timer(0.0001, int)
    runtime.spin_in_background()
    sys.setswitchinterval(1e-6)
    for number in range(TIMES):
        publisher = node.create_publisher(Empty, f'topic_{number % 7}', qos.COMMAND)
        subscription = node.create_subscription(Empty, 'topic', print, qos.COMMAND)
        node.destroy_publisher(publisher)
        node.destroy_subscription(subscription)
    assert runtime.failure is None
