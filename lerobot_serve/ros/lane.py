"""
A subscription with a thread of its own, apart from the executor: the data path's.

After each callback an executor builds its wait set anew in Python; for some 0.2 ms that keeps the
interpreter from the very thread that the callback woke. A lane waits for one topic and goes
straight back to waiting. It uses what rclpy.wait_for_message uses. The price: rclpy's warning of
an incompatible QoS needs the executor, so a lane has none.
"""

from __future__ import annotations

from collections.abc import Callable
import threading

from rclpy.callback_groups import CallbackGroup
from rclpy.guard_condition import GuardCondition
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile

from lerobot_serve.ros import qos

WAIT_FOR_EVER = -1


class Apart(CallbackGroup):
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


class Lane:
    """
    Hands each message, as bytes, to one function.

    Built by the thread that builds the node. `run` is the body of a thread, which `wake` ends
    together with `stop`.
    """

    def __init__(
        self,
        node: Node,
        kind: type,
        topic: str,
        profile: QoSProfile,
        deposit: Callable[[bytes], None],
    ) -> None:
        self._kind, self._deposit = kind, deposit
        # the executor keeps a weak reference to the group
        self._group = Apart()
        self._subscription = node.create_subscription(
            kind,
            topic,
            deposit,
            profile,
            callback_group=self._group,
            raw=True,
            qos_overriding_options=qos.OVERRIDABLE,
        )
        self._wake = GuardCondition(None, None, context=node.context)
        self._wait_set = rclpy_implementation.WaitSet(1, 1, 0, 0, 0, 0, node.context.handle)

    @property
    def topic_name(self) -> str:
        """The full name of the topic."""
        return self._subscription.topic_name

    def publisher_count(self) -> int:
        """Return how many publishers are connected."""
        return self._subscription.get_publisher_count()

    def run(self, stop: threading.Event) -> None:
        """Hand over messages until `stop` is set and `wake` was called."""
        while not stop.is_set():
            raw = self._take()
            if raw is not None:
                self._deposit(raw)

    def wake(self) -> None:
        """End the present wait; any thread."""
        self._wake.trigger()

    def _take(self) -> bytes | None:
        """Wait for the next message; None when woken."""
        with self._subscription.handle, self._wake.handle:
            self._wait_set.clear_entities()
            self._wait_set.add_subscription(self._subscription.handle)
            self._wait_set.add_guard_condition(self._wake.handle)
            self._wait_set.wait(WAIT_FOR_EVER)
            taken = self._subscription.handle.take_message(self._kind, True)
        return taken[0] if taken else None
