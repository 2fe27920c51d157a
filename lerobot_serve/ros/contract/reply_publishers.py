# SPDX-License-Identifier: Apache-2.0
"""Publish chunks on the reply topics of clients: one publisher for each topic in use."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.publisher import Publisher

from lerobot_serve.ros.contract.session_messages import create_reply_publisher


class ReplyPublishers:
    """The control thread opens and closes topics; any thread sends and queries."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._publishers: dict[str, Publisher] = {}
        # a publisher must not go while another thread publishes on it
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
            delivered &= publisher.wait_for_all_acked(Duration(seconds=left_s))
        return delivered
