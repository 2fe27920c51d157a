"""
Subscriptions with a thread of their own, apart from the executor: the data path's.

After each callback an executor builds its wait set anew in Python; for some 0.2 ms that keeps the
interpreter from the very thread that the callback woke. A lane waits for its topics and goes
straight back to waiting. It uses what rclpy.wait_for_message uses. The price: rclpy's warning of
an incompatible QoS needs the executor, so a lane has none.

The same wait can watch who publishes: a writer whose liveliness lease runs out, or that is
destroyed, is reported to the function of its topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
import threading
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.guard_condition import GuardCondition
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

from lerobot_serve.ros import qos

WAIT_FOREVER = -1

OnMessage = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class LivelinessStatus:
    """
    How many publishers of a topic are alive now, and how this changed.

    `silent` counts those that exist and let their lease run out: killed, stopped, cut off.
    """

    alive: int
    alive_change: int
    silent: int
    silent_change: int


OnLiveliness = Callable[[LivelinessStatus], None]
LIVELINESS_CHANGED = (
    rclpy_implementation.rcl_subscription_event_type_t.RCL_SUBSCRIPTION_LIVELINESS_CHANGED
)


class ExecutorExcludedGroup(CallbackGroup):
    """
    Keeps the executor from a subscription and from its QoS events.

    From those too: in rmw_fastrtps one condition stands for the events and the data of a reader,
    so an executor that waits for the events wakes with every message.
    """

    def can_execute(self, entity: object) -> bool:
        return False

    def beginning_execution(self, entity: object) -> bool:
        return False

    def ending_execution(self, entity: object) -> None:
        pass


class DedicatedSubscriptions:
    """
    Hands each message of several topics, as bytes, to a function of its topic.

    Built by the thread that builds the node, or that configures it. `run` is the body of a thread,
    which `wake` ends together with `stop`; where much has come, the topics take turns.
    """

    def __init__(
        self, node: Node, kind: type, deposits: Mapping[str, OnMessage], profile: QoSProfile
    ) -> None:
        """`deposits` holds topics, and each one's function."""
        self._node, self._kind = node, kind
        # the executor keeps a weak reference to the group
        self._group = ExecutorExcludedGroup()
        self._topics: dict[str, tuple[Subscription, OnMessage]] = {}
        self._watched: list[tuple[Any, OnLiveliness]] = []
        self._wake = GuardCondition(None, None, context=node.context)
        for topic, deposit in deposits.items():
            self.add(topic, profile, deposit)

    def add(self, topic: str, profile: QoSProfile, deposit: OnMessage) -> None:
        """Listen to one more topic; before `run`."""
        subscription = self._node.create_subscription(
            self._kind,
            topic,
            deposit,
            profile,
            callback_group=self._group,
            raw=True,
            qos_overriding_options=qos.OVERRIDABLE,
        )
        self._topics[topic] = subscription, deposit

    def watch(self, topic: str, on_liveliness: OnLiveliness) -> None:
        """Report publishers of a topic that come, fall silent and go; before `run`."""
        subscription, _ = self._topics[topic]
        with subscription.handle:
            event = rclpy_implementation.EventHandle(subscription.handle, LIVELINESS_CHANGED)
        self._watched.append((event, on_liveliness))

    def publisher_count(self, topic: str = '') -> int:
        """Return how many publishers are connected to a topic, or to all of them."""
        names = [topic] if topic else self._topics
        return sum(self._topics[name][0].get_publisher_count() for name in names)

    def run(self, stop: threading.Event) -> None:
        """Hand over messages until `stop` is set and `wake` was called."""
        wait_set = rclpy_implementation.WaitSet(
            len(self._topics), 1, 0, 0, 0, len(self._watched), self._node.context.handle
        )
        listening = {
            each.handle.pointer: (each.handle, use) for each, use in self._topics.values()
        }
        with ExitStack() as in_use:
            for handle, _ in (*listening.values(), *self._watched):
                in_use.enter_context(handle)
            in_use.enter_context(self._wake.handle)
            while not stop.is_set():
                for pointer in self._wait(wait_set, listening):
                    handle, deposit = listening[pointer]
                    taken = handle.take_message(self._kind, True)
                    if taken:
                        deposit(taken[0])
                self._report_liveliness(wait_set)

    def _wait(self, wait_set: Any, listening: dict[int, tuple[Any, OnMessage]]) -> list[int]:
        """Return which subscriptions hold messages, none when woken."""
        wait_set.clear_entities()
        for handle, _ in listening.values():
            wait_set.add_subscription(handle)
        for event, _ in self._watched:
            wait_set.add_event(event)
        wait_set.add_guard_condition(self._wake.handle)
        wait_set.wait(WAIT_FOREVER)
        return wait_set.get_ready_entities('subscription')

    def _report_liveliness(self, wait_set: Any) -> None:
        """Messages that came before a publisher fell silent are handed over first."""
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
        """End the present wait; any thread, also after `close`."""
        self._wake.trigger()

    def close(self) -> None:
        """Destroy the subscriptions; once `run` has returned."""
        for event, _ in self._watched:
            event.destroy_when_not_in_use()
        self._watched.clear()
        for subscription, _ in self._topics.values():
            self._node.destroy_subscription(subscription)
        self._topics.clear()


class DedicatedSubscription(DedicatedSubscriptions):
    """Hands each message of one topic, as bytes, to one function."""

    def __init__(
        self, node: Node, kind: type, topic: str, profile: QoSProfile, deposit: OnMessage
    ) -> None:
        super().__init__(node, kind, {topic: deposit}, profile)
        self._topic = topic

    @property
    def topic_name(self) -> str:
        """The full name of the topic."""
        return self._topics[self._topic][0].topic_name
