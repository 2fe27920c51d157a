"""A subscription with a thread of its own: all arrives, in order, and it ends when told."""

from __future__ import annotations

from functools import partial
import queue

import pytest
from rclpy.serialization import serialize_message
from std_msgs.msg import UInt64

from lerobot_serve.ros import qos
from lerobot_serve.ros.lane import Lane


@pytest.fixture
def lane(runtime, node):
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    built = Lane(node, UInt64, '/numbers', qos.OUTCOME, arrived.put)
    runtime.thread('lane', partial(built.run, runtime.stop), built.wake)
    built.arrived = arrived
    return built


def test_every_message_arrives_once_and_in_order(lane, node, wait_until):
    publisher = node.create_publisher(UInt64, '/numbers', qos.OUTCOME)
    wait_until(publisher.get_subscription_count, 'the lane is found')
    sent = [serialize_message(UInt64(data=number)) for number in range(200)]
    got = []
    for raw in sent:
        publisher.publish(raw)
        got.append(lane.arrived.get(timeout=10))
    assert got == sent
    assert lane.arrived.empty()


def test_the_executor_does_not_take_from_it(lane, node, runtime):
    assert lane.topic_name == '/numbers'
    subscription = lane._subscription
    assert not runtime.executor.can_execute(subscription)
    assert not any(runtime.executor.can_execute(event) for event in subscription.event_handlers)
