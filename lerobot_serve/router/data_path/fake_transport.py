# SPDX-License-Identifier: Apache-2.0
"""
A Transport without ROS that records its calls, for tests and benchmarks.

Called by the threads of the dispatcher; read after they have ended.
"""

from __future__ import annotations

from collections import deque

from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.wire.chunk import ReplySummary
from lerobot_serve.wire.execution_report import ExecutionReport
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.schema import Status

FailedRequest = tuple[InFlightRequest, Status, str]


class FakeTransport:
    """
    A Transport whose deques hold the last `capacity` calls of each kind, oldest first. Every call
    runs `called`, which a subclass may override.
    """

    def __init__(self, capacity: int | None = None) -> None:
        # server and bytes of each request
        self.sent: deque[tuple[str, bytes]] = deque(maxlen=capacity)
        self.replies: deque[tuple[ClientSession, bytes]] = deque(maxlen=capacity)
        self.failures: deque[FailedRequest] = deque(maxlen=capacity)
        self.decisions: deque[tuple[ClientSession, InFlightRequest, Placement]] = deque(
            maxlen=capacity
        )
        self.reopened: deque[tuple[ClientSession, str]] = deque(maxlen=capacity)
        # request, server and reply
        self.served_by: deque[tuple[InFlightRequest, str, ReplySummary]] = deque(maxlen=capacity)
        self.heard: deque[tuple[ClientSession, Header, ExecutionReport | None]] = deque(
            maxlen=capacity
        )
        self.ended: deque[tuple[InFlightRequest, str]] = deque(maxlen=capacity)
        self.wakes = 0

    def called(self) -> None:
        """Do nothing."""

    def send(self, server: str, raw: bytes) -> None:
        self.called()
        self.sent.append((server, raw))

    def reply(self, robot: ClientSession, raw: bytes) -> None:
        self.called()
        self.replies.append((robot, raw))

    def fail(self, flight: InFlightRequest, status: Status, text: str) -> None:
        self.called()
        self.failures.append((flight, status, text))

    def on_placed(
        self, robot: ClientSession, flight: InFlightRequest, placement: Placement
    ) -> None:
        self.called()
        self.decisions.append((robot, flight, placement))

    def reopen_session(self, robot: ClientSession, server: str) -> None:
        self.called()
        self.reopened.append((robot, server))

    def wake(self) -> None:
        self.called()
        self.wakes += 1

    def on_replied(
        self, flight: InFlightRequest, server: str, raw: bytes, answer: ReplySummary
    ) -> None:
        self.called()
        self.served_by.append((flight, server, answer))

    def on_dropped(self, flight: InFlightRequest, reason: str) -> None:
        self.called()
        self.ended.append((flight, reason))

    def on_requested(
        self, robot: ClientSession, raw: bytes, header: Header, executed: ExecutionReport | None
    ) -> None:
        self.called()
        self.heard.append((robot, header, executed))
