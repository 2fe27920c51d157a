# SPDX-License-Identifier: Apache-2.0
"""
Receive messages in a dedicated thread that bypasses the executor, for the data path.

After each callback an executor rebuilds its wait set in Python, which holds the interpreter for
some 0.2 ms just when the thread woken by the callback needs it. A dedicated subscription waits for
its topics in the same way as rclpy.wait_for_message and returns to waiting at once. Cost: without
the executor rclpy gives no warning of an incompatible QoS.

The same wait can watch the liveliness of publishers: one whose lease expires, or that is
destroyed, is reported to the callback of its topic.

Decode messages of other nodes: bytes become a message, or Malformed with a reason.

An undecodable message must neither end a node nor be lost uncounted, as in a subscription that
lets the middleware decode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
import threading
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.guard_condition import GuardCondition
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.subscription import Subscription

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.ros import qos

UNDECODABLE = 'undecodable'


def decode_message(raw: bytes, kind: type, topic: str) -> Any:
    """Return the message of these bytes. Raises Malformed."""
    try:
        return deserialize_message(raw, kind)
    except Exception as error:
        # the middleware, the type support and their allocations each raise their own types
        raise Malformed(
            UNDECODABLE,
            f'{topic}: {len(raw)} bytes are not a {kind.__name__} ({type(error).__name__})',
        ) from error


def create_checked_subscription(
    node: Node,
    kind: type,
    topic: str,
    callback: Callable[[Any], None],
    profile: QoSProfile,
    *,
    on_drop: Callable[[str], None],
    **options: Any,
) -> Subscription:
    """Subscribe; `on_drop` receives the reason of each undecodable message."""
    receive = partial(_receive, kind, topic, callback, on_drop)
    return node.create_subscription(kind, topic, receive, profile, raw=True, **options)


def _receive(
    kind: type,
    topic: str,
    callback: Callable[[Any], None],
    on_drop: Callable[[str], None],
    raw: bytes,
) -> None:
    try:
        message = decode_message(raw, kind, topic)
    except Malformed as error:
        on_drop(error.reason)
    else:
        callback(message)


WAIT_FOREVER = -1

OnMessage = Callable[[bytes], None]
# the bytes of a message, and the source timestamp that identifies it in a recording [ns]
OnMessageWithId = Callable[[bytes, int], None]


@dataclass(frozen=True, slots=True)
class LivelinessStatus:
    """
    Number of publishers of a topic that are alive, and its change.

    `not_alive` counts those that exist with an expired lease: killed, stopped or disconnected.
    """

    alive: int
    alive_change: int
    not_alive: int
    not_alive_change: int


OnLiveliness = Callable[[LivelinessStatus], None]
LIVELINESS_CHANGED = (
    rclpy_implementation.rcl_subscription_event_type_t.RCL_SUBSCRIPTION_LIVELINESS_CHANGED
)


class ExecutorExcludedGroup(CallbackGroup):
    """
    Excludes a subscription and its QoS events from the executor.

    The events are excluded because rmw_fastrtps uses one condition for the events and the data of
    a reader: an executor that waits for the events wakes with every message.
    """

    def can_execute(self, entity: object) -> bool:
        return False

    def beginning_execution(self, entity: object) -> bool:
        return False

    def ending_execution(self, entity: object) -> None:
        pass


class DedicatedSubscriptions:
    """
    Passes each message of several topics, as bytes, to the callback of its topic.

    Built by the thread that builds or configures the node. `run` is the body of a thread, which
    ends when `stop` is set and `wake` is called; under load it serves the topics in turn.
    """

    def __init__(
        self, node: Node, kind: type, callbacks: Mapping[str, OnMessage], profile: QoSProfile
    ) -> None:
        """`callbacks` maps each topic to its callback."""
        self._node, self._kind = node, kind
        # the executor keeps a weak reference to the group
        self._group = ExecutorExcludedGroup()
        self._topics: dict[str, tuple[Subscription, type, OnMessageWithId]] = {}
        self._watched: list[tuple[Any, OnLiveliness]] = []
        self._wake = GuardCondition(None, None, context=node.context)
        for topic, callback in callbacks.items():
            self.add(topic, profile, callback)

    def add(
        self, topic: str, profile: QoSProfile, callback: OnMessage, kind: type | None = None
    ) -> None:
        """Subscribe to one more topic, of another type with `kind`; before `run`."""

        def without_id(raw: bytes, _: int) -> None:
            callback(raw)

        self.add_with_id(topic, profile, without_id, kind)

    def add_with_id(
        self, topic: str, profile: QoSProfile, callback: OnMessageWithId, kind: type | None = None
    ) -> None:
        """As `add`, with the id of each message."""
        subscription = self._node.create_subscription(
            kind or self._kind,
            topic,
            callback,
            profile,
            callback_group=self._group,
            raw=True,
            qos_overriding_options=qos.OVERRIDABLE,
        )
        self._topics[topic] = subscription, kind or self._kind, callback

    def watch_liveliness(self, topic: str, on_liveliness: OnLiveliness) -> None:
        """Report publishers of a topic that appear, lose liveliness or end; before `run`."""
        subscription = self._topics[topic][0]
        with subscription.handle:
            event = rclpy_implementation.EventHandle(subscription.handle, LIVELINESS_CHANGED)
        self._watched.append((event, on_liveliness))

    def publisher_count(self, topic: str = '') -> int:
        """Return how many publishers are connected to a topic, or to all of them."""
        names = [topic] if topic else self._topics
        return sum(self._topics[name][0].get_publisher_count() for name in names)

    def run(self, stop: threading.Event) -> None:
        """Dispatch messages until `stop` is set and `wake` is called."""
        wait_set = rclpy_implementation.WaitSet(
            len(self._topics), 1, 0, 0, 0, len(self._watched), self._node.context.handle
        )
        listening = {
            subscription.handle.pointer: (subscription.handle, kind, callback)
            for subscription, kind, callback in self._topics.values()
        }
        with ExitStack() as in_use:
            for handle, _, _ in listening.values():
                in_use.enter_context(handle)
            for event, _ in self._watched:
                in_use.enter_context(event)
            in_use.enter_context(self._wake.handle)
            while not stop.is_set():
                for pointer in self._wait(wait_set, listening):
                    handle, kind, callback = listening[pointer]
                    taken = handle.take_message(kind, True)
                    if taken:
                        callback(taken[0], taken[1]['source_timestamp'])
                self._report_liveliness(wait_set)

    def _wait(
        self, wait_set: Any, listening: dict[int, tuple[Any, type, OnMessageWithId]]
    ) -> list[int]:
        """Return the subscriptions with messages, none after `wake`."""
        wait_set.clear_entities()
        for handle, _, _ in listening.values():
            wait_set.add_subscription(handle)
        for event, _ in self._watched:
            wait_set.add_event(event)
        wait_set.add_guard_condition(self._wake.handle)
        wait_set.wait(WAIT_FOREVER)
        ready: list[int] = wait_set.get_ready_entities('subscription')
        return ready

    def _report_liveliness(self, wait_set: Any) -> None:
        """Report liveliness changes, after the messages that arrived before them."""
        for position, (event, on_liveliness) in enumerate(self._watched):
            if not wait_set.is_ready('event', position):
                continue
            status = event.take_event()
            if status is not None:
                on_liveliness(
                    LivelinessStatus(
                        status.alive_count,
                        status.alive_count_change,
                        status.not_alive_count,
                        status.not_alive_count_change,
                    )
                )

    def wake(self) -> None:
        """End the current wait; any thread, also after `close`."""
        self._wake.trigger()

    def close(self) -> None:
        """Destroy the subscriptions; call it once `run` has returned."""
        for event, _ in self._watched:
            event.destroy_when_not_in_use()
        self._watched.clear()
        for subscription, _, _ in self._topics.values():
            self._node.destroy_subscription(subscription)
        self._topics.clear()


class DedicatedSubscription(DedicatedSubscriptions):
    """Passes each message of one topic, as bytes, to one callback."""

    def __init__(
        self, node: Node, kind: type, topic: str, profile: QoSProfile, callback: OnMessage
    ) -> None:
        super().__init__(node, kind, {topic: callback}, profile)
        self._topic = topic

    @property
    def topic_name(self) -> str:
        """The full name of the topic."""
        return self._topics[self._topic][0].topic_name
