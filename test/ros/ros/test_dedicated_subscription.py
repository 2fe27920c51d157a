# SPDX-License-Identifier: Apache-2.0
"""Subscriptions with a thread of their own: all arrives, in order, and it ends when told."""

from __future__ import annotations

from functools import partial
import queue
import threading

import pytest
from rclpy.duration import Duration
from rclpy.serialization import serialize_message
from std_msgs.msg import String, UInt64

from lerobot_serve.ros import qos
from lerobot_serve.ros.subscriptions import (
    DedicatedSubscription,
    DedicatedSubscriptions,
)

TOPICS = ('/odd', '/even', '/other')
BURST = 50


def number(value: int) -> bytes:
    return serialize_message(UInt64(data=value))


@pytest.fixture
def lane(runtime, node):
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    built = DedicatedSubscription(node, UInt64, '/numbers', qos.OUTCOME, arrived.put)
    runtime.thread('lane', partial(built.run, runtime.stop), built.wake)
    built.arrived = arrived
    return built


@pytest.fixture
def lanes(node):
    """Lanes of three topics, of which one was added, and what arrives by them; not run yet."""
    arrived: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()

    def put(topic: str, raw: bytes) -> None:
        arrived.put((topic, raw))

    deposits = {topic: partial(put, topic) for topic in TOPICS[:2]}
    built = DedicatedSubscriptions(node, UInt64, deposits, qos.OUTCOME)
    built.add(TOPICS[2], qos.SENSOR, partial(put, TOPICS[2]))
    built.arrived = arrived
    yield built
    built.close()


@pytest.fixture
def publishers(lanes, node, wait_until):
    made = {topic: node.create_publisher(UInt64, topic, qos.OUTCOME) for topic in TOPICS}
    for publisher in made.values():
        wait_until(publisher.get_subscription_count, 'the lanes are found')
    wait_until(lambda: lanes.publisher_count() == len(TOPICS), 'the publishers are found')
    return made


def test_every_message_arrives_once_and_in_order(lane, node, wait_until):
    publisher = node.create_publisher(UInt64, '/numbers', qos.OUTCOME)
    wait_until(publisher.get_subscription_count, 'the lane is found')
    sent = [number(value) for value in range(200)]
    got = []
    for raw in sent:
        publisher.publish(raw)
        got.append(lane.arrived.get(timeout=10))
    assert got == sent
    assert lane.arrived.empty()


def test_a_topic_may_have_a_type_of_its_own(lanes, publishers, node, runtime, wait_until):
    lanes.add('/words', qos.OUTCOME, lambda raw: lanes.arrived.put(('/words', raw)), String)
    runtime.thread('lanes', partial(lanes.run, runtime.stop), lanes.wake)
    words = node.create_publisher(String, '/words', qos.OUTCOME)
    wait_until(words.get_subscription_count, 'the lane is found')
    for publisher, topic, message in (
        (words, '/words', String(data='hold')),
        (publishers[TOPICS[0]], TOPICS[0], UInt64(data=1)),
    ):
        publisher.publish(message)
        assert lanes.arrived.get(timeout=30) == (topic, serialize_message(message))


def test_the_executor_does_not_take_from_it(lane, node, runtime):
    assert lane.topic_name == '/numbers'
    ((subscription, _, _),) = lane._topics.values()
    assert not runtime.executor.can_execute(subscription)
    assert not any(runtime.executor.can_execute(event) for event in subscription.event_handlers)


def test_each_message_goes_to_the_function_of_its_topic(lanes, publishers, runtime):
    runtime.thread('lanes', partial(lanes.run, runtime.stop), lanes.wake)
    for value in range(30):
        topic = TOPICS[value % 3]
        publishers[topic].publish(number(value))
        assert lanes.arrived.get(timeout=10) == (topic, number(value))


def test_what_waits_on_several_topics_arrives_complete_and_in_turns(lanes, publishers, runtime):
    for topic in TOPICS[:2]:
        for value in range(BURST):
            publishers[topic].publish(number(value))
        assert publishers[topic].wait_for_all_acked(Duration(seconds=10))
    runtime.thread('lanes', partial(lanes.run, runtime.stop), lanes.wake)
    got = [lanes.arrived.get(timeout=10) for _ in range(2 * BURST)]
    for topic in TOPICS[:2]:
        assert [raw for name, raw in got if name == topic] == [number(v) for v in range(BURST)]
    turns = [{got[at][0], got[at + 1][0]} for at in range(0, 2 * BURST, 2)]
    assert turns == [set(TOPICS[:2])] * BURST


def test_publishers_are_counted_for_each_topic(lanes, publishers, node, wait_until):
    assert [lanes.publisher_count(topic) for topic in TOPICS] == [1, 1, 1]
    node.destroy_publisher(publishers['/odd'])
    wait_until(lambda: lanes.publisher_count('/odd') == 0, 'the publisher is missed')
    assert lanes.publisher_count() == 2


def test_lanes_end_when_told_and_leave_no_subscription(lanes, publishers, runtime, wait_until):
    stop = threading.Event()
    thread = runtime.thread('lanes', partial(lanes.run, stop))
    publishers['/odd'].publish(number(1))
    lanes.arrived.get(timeout=10)
    stop.set()
    lanes.wake()
    thread.join(10)
    assert not thread.is_alive()
    lanes.close()
    for topic, publisher in publishers.items():
        wait_until(lambda p=publisher: p.get_subscription_count() == 0, f'nobody is on {topic}')
    lanes.wake()
    assert lanes.publisher_count() == 0
    lanes.add('/odd', qos.OUTCOME, lambda raw: None)
    wait_until(publishers['/odd'].get_subscription_count, 'it can be had again')
