# SPDX-License-Identifier: Apache-2.0
"""
Client of the std_srvs/Trigger service that stops a robot; logs its result.

The tick thread calls without waiting, not even for a log. The executor thread logs the call, and a
stop that was refused or got no response: then an operator must stop the robot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import time

from rclpy.node import Node
from rclpy.task import Future
from std_srvs.srv import Trigger

REPLY_TIMEOUT_S = 2.0
MANUAL_STOP_TEXT = 'stop the robot by hand'


class StopService:
    """Calls the stop service; does nothing without a service name."""

    def __init__(self, node: Node, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = node.create_client(Trigger, name) if name else None
        self._log, self._clock = node.get_logger().error, clock
        # reason and future of each call
        self._called: deque[tuple[str, Future]] = deque()
        self._waiting: list[tuple[float, Future]] = []

    def call(self, why: str) -> None:
        """Call the stop service; the tick thread."""
        if self._client:
            self._called.append((why, self._client.call_async(Trigger.Request())))

    def look(self) -> None:
        """Log calls and their results; polled by the executor thread."""
        while self._called:
            why, answer = self._called.popleft()
            self._log(f'called {self._name}: {why}; no commands are sent until ~/reset is called')
            self._waiting.append((self._clock() + REPLY_TIMEOUT_S, answer))
        self._waiting = [each for each in self._waiting if not self._is_over(*each)]

    @property
    def _name(self) -> str:
        return self._client.srv_name

    def _is_over(self, deadline_s: float, answer: Future) -> bool:
        if answer.done():
            reply = answer.result()
            if not reply.success:
                self._log(
                    f'{self._name} did not stop the robot: {reply.message!r}; {MANUAL_STOP_TEXT}'
                )
            return True
        is_late = self._clock() >= deadline_s
        if is_late:
            self._client.remove_pending_request(answer)
            self._log(
                f'no response of {self._name} within {REPLY_TIMEOUT_S:g} s; {MANUAL_STOP_TEXT}'
            )
        return is_late
