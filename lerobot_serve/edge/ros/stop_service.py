# SPDX-License-Identifier: Apache-2.0
"""
Client of the std_srvs/Trigger service that stops a robot; logs its result.

The tick thread calls the service without waiting or logging. The executor thread logs the call and
a refused stop or a missing response: then an operator must stop the robot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import time
from typing import NamedTuple

from rclpy.client import Client
from rclpy.node import Node
from rclpy.task import Future
from std_srvs.srv import Trigger

REPLY_TIMEOUT_S = 2.0
MANUAL_STOP_TEXT = 'stop the robot by hand'


class _Call(NamedTuple):
    """A call of the service, and its future response."""

    client: Client
    response: Future


class StopService:
    """Calls the stop service; does nothing without a service name."""

    def __init__(self, node: Node, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = node.create_client(Trigger, name) if name else None
        self._log, self._clock = node.get_logger().error, clock
        # the reason of each call
        self._called: deque[tuple[str, _Call]] = deque()
        self._waiting: list[tuple[float, _Call]] = []

    def call(self, why: str) -> None:
        """Call the stop service; the tick thread."""
        if client := self._client:
            self._called.append((why, _Call(client, client.call_async(Trigger.Request()))))

    def poll(self) -> None:
        """Log calls and their results; polled by the executor thread."""
        while self._called:
            why, call = self._called.popleft()
            name = call.client.srv_name
            self._log(f'called {name}: {why}; no commands are sent until ~/reset is called')
            self._waiting.append((self._clock() + REPLY_TIMEOUT_S, call))
        self._waiting = [each for each in self._waiting if not self._is_over(*each)]

    def _is_over(self, deadline_s: float, call: _Call) -> bool:
        name = call.client.srv_name
        if call.response.done():
            reply = call.response.result()
            if not reply.success:
                self._log(f'{name} did not stop the robot: {reply.message!r}; {MANUAL_STOP_TEXT}')
            return True
        is_late = self._clock() >= deadline_s
        if is_late:
            call.client.remove_pending_request(call.response)
            self._log(f'no response of {name} within {REPLY_TIMEOUT_S:g} s; {MANUAL_STOP_TEXT}')
        return is_late
