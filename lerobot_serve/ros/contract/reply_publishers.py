# SPDX-License-Identifier: Apache-2.0
"""Publish chunks on the reply topics of clients: one publisher for each topic in use."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import threading
import time

from rclpy.duration import Duration
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.exceptions import InvalidHandle
from rclpy.node import Node
from rclpy.publisher import Publisher

from lerobot_serve.contract.names import is_reply_topic, REPLY_TOPIC_FORMS
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import ActionChunk

CHUNK_TYPE = 'lerobot_serve_interfaces/msg/ActionChunk'
NO_EVENTS = PublisherEventCallbacks(use_default_callbacks=False)


class ReplyPublishers:
    """The control thread opens and closes topics; any thread sends and queries."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._publishers: dict[str, Publisher] = {}
        # a publisher must not be destroyed while another thread publishes on it
        self._lock = threading.Lock()

    def open(self, topic: str) -> None:
        """Create the publisher of a client's topic. Raises SessionRefused."""
        if topic not in self._publishers:
            publisher = create_reply_publisher(self._node, topic)
            with self._lock:
                self._publishers[topic] = publisher

    def send(self, topic: str, raw: bytes, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """
        Publish the bytes of a chunk; return False when the topic is not open.

        `is_wanted` is called under the lock: after `retain` has returned, no unwanted chunk is
        sent.
        """
        with self._lock:
            publisher = self._publishers.get(topic) if is_wanted() else None
            if publisher:
                publisher.publish(raw)
        return publisher is not None

    def has_subscriber(self, topic: str) -> bool:
        """Return whether the topic has a subscriber."""
        with self._lock:
            publisher = self._publishers.get(topic)
            return publisher is not None and publisher.get_subscription_count() > 0

    def retain(self, topics: set[str]) -> None:
        """Close all other topics."""
        with self._lock:
            for topic in self._publishers.keys() - topics:
                self._node.destroy_publisher(self._publishers.pop(topic))

    def wait_until_delivered(self, timeout_s: float) -> bool:
        """Wait until all chunks are acknowledged; return False after the timeout."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            publishers = list(self._publishers.values())
        delivered = True
        for publisher in publishers:
            left_s = max(0.0, deadline - time.monotonic())
            # a session that has ended meanwhile waits for no chunk
            with contextlib.suppress(InvalidHandle):
                delivered &= publisher.wait_for_all_acked(Duration(seconds=left_s))
        return delivered


def create_reply_publisher(node: Node, topic: str) -> Publisher:
    """
    Return a publisher of chunks on the reply topic of a client. Raises SessionRefused.

    It has no incompatible-QoS event: an executor checks every such event each time it wakes, and a
    fleet has hundreds of these topics. An incompatible client shows as a topic without subscriber.
    """
    if not is_reply_topic(topic):
        raise SessionRefused(
            Refusal.BAD_NAME,
            f'reply_topic must be the full name of a ROS topic, {REPLY_TOPIC_FORMS}; got '
            f'{topic[:80]!r}',
        )
    check_topic_type(node, topic)
    try:
        return node.create_publisher(
            ActionChunk, topic, qos.ACTION_CHUNK, event_callbacks=NO_EVENTS
        )
    except Exception as error:
        # any error of rcl, for example if the topic has another type in this process
        raise SessionRefused(
            Refusal.BAD_NAME, f'reply_topic {topic!r} cannot carry chunks: {error}'
        ) from error


def check_topic_type(node: Node, topic: str) -> None:
    """Raise SessionRefused for a topic that another process uses with another type."""
    ends = (
        *node.get_publishers_info_by_topic(topic),
        *node.get_subscriptions_info_by_topic(topic),
    )
    others = sorted({end.topic_type for end in ends} - {CHUNK_TYPE})
    if others:
        raise SessionRefused(
            Refusal.BAD_NAME,
            f'reply_topic {topic!r} has the type {", ".join(others)}; use a topic of your own',
        )
