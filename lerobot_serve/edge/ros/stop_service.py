"""
A call of the service std_srvs/Trigger that stops a robot, and what became of it.

The tick thread calls and waits for nothing, not even for a log. The executor thread says what was
called, and when the stop was refused or not answered: whoever reads it has to stop the robot.
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
    """Nothing is called where no service is named."""

    def __init__(self, node: Node, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = node.create_client(Trigger, name) if name else None
        self._log, self._clock = node.get_logger().error, clock
        # why, and what will have the answer
        self._called: deque[tuple[str, Future]] = deque()
        self._waiting: list[tuple[float, Future]] = []

    def call(self, why: str) -> None:
        """Ask for the stop; the tick thread."""
        if self._client:
            self._called.append((why, self._client.call_async(Trigger.Request())))

    def look(self) -> None:
        """Say what was called and what came of it; the executor thread, now and then."""
        while self._called:
            why, answer = self._called.popleft()
            self._log(f'called {self._name}: {why}; nothing is commanded until ~/reset is called')
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
                f'{self._name} did not answer within {REPLY_TIMEOUT_S:g} s; {MANUAL_STOP_TEXT}'
            )
        return is_late
