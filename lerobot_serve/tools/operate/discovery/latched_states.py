# SPDX-License-Identifier: Apache-2.0
"""
The newest latched states of nodes, by the subscriptions of a node that an executor spins.

The thread of a client watches and waits; the executor thread deposits. Every wait has a limit and
ends with the message that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time
from typing import Any, NamedTuple, TypeVar

from rclpy.node import Node
from rclpy.subscription import Subscription

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.ros import qos
from lerobot_serve_interfaces import msg

T = TypeVar('T')


class Received(NamedTuple):
    """A state, when it arrived by the monotonic clock, and how many have arrived by then."""

    message: Any
    at_s: float
    arrivals: int = 1

    @property
    def age_s(self) -> float:
        """The age of the state: of a first, latched one by the clocks of both machines."""
        if self.arrivals > 1:
            return time.monotonic() - self.at_s
        stamp_ns: int = self.message.stamp.ns
        return time.time() - stamp_ns / 1e9


class LatchedStates:
    """See the module."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._changed = threading.Condition()
        self._states: dict[str, Received] = {}
        self._watched: dict[str, Subscription] = {}

    def watch(self, kind: type, topic: str) -> None:
        """Receive the states of a topic, by their record, from now on."""
        if topic in self._watched:
            return
        self._watched[topic] = self._node.create_subscription(
            getattr(msg, kind.__name__),
            topic,
            partial(self._deposit, kind, topic),
            qos.STATE,
            raw=True,
        )

    def get(self, topic: str) -> Received | None:
        """Return the newest state of a topic; None before the first."""
        with self._changed:
            return self._states.get(topic)

    def wait(self, accepted: Callable[[], T], timeout_s: float) -> T:
        """Return the first true value that the function returns after a state, or its last one."""
        with self._changed:
            return self._changed.wait_for(accepted, timeout_s)

    def close(self) -> None:
        """End the subscriptions, whose node continues."""
        for subscription in self._watched.values():
            self._node.destroy_subscription(subscription)
        self._watched.clear()

    # executor thread

    def _deposit(self, kind: type, topic: str, raw: bytes) -> None:
        try:
            message: Any = decode(kind, raw)
        except Malformed:
            # as if it had not arrived
            return
        with self._changed:
            before = self._states.get(topic)
            count = before.arrivals + 1 if before else 1
            self._states[topic] = Received(message, time.monotonic(), count)
            self._changed.notify_all()
