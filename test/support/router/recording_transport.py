# SPDX-License-Identifier: Apache-2.0
"""
A ReplicaTransport and RequestObserver without ROS that records its calls.

Called by the threads of the dispatcher; read after they have ended.
"""

from __future__ import annotations

from collections import deque

from lerobot_serve.contract.data_path.chunk import ReplySummary
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.data_path.request_observer import RequestObserver
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions.client_sessions import ClientSession

FailedRequest = tuple[InFlightRequest, Status, str]


class RecordingTransport(RequestObserver):
    """
    See the module. Its deques hold the last `capacity` calls of each kind, oldest first. Every
    call runs `called`, which a subclass may override.
    """

    def __init__(self, capacity: int | None = None) -> None:
        # server and bytes of each request
        self.sent: deque[tuple[str, bytes]] = deque(maxlen=capacity)
        self.replies: deque[tuple[ClientSession, bytes]] = deque(maxlen=capacity)
        self.failures: deque[FailedRequest] = deque(maxlen=capacity)
        self.unknown: deque[tuple[str, int]] = deque(maxlen=capacity)
        # of each failure, the seconds until the next request is admitted
        self.retries: deque[float] = deque(maxlen=capacity)
        self.decisions: deque[tuple[ClientSession, InFlightRequest, Placement]] = deque(
            maxlen=capacity
        )
        self.reopened: deque[tuple[ClientSession, str]] = deque(maxlen=capacity)
        # request, server and reply
        self.served_by: deque[tuple[InFlightRequest, str, ReplySummary]] = deque(maxlen=capacity)
        self.heard: deque[tuple[ClientSession, Header, ExecutionReport | None]] = deque(
            maxlen=capacity
        )
        self.refused: deque[tuple[ClientSession, Header, ExecutionReport | None]] = deque(
            maxlen=capacity
        )
        self.ended: deque[tuple[InFlightRequest, str]] = deque(maxlen=capacity)
        self.wakes = 0

    def called(self) -> None:
        """Do nothing."""

    def send(self, server: str, raw: bytes) -> None:
        self.called()
        self.sent.append((server, raw))

    def reply(self, session: ClientSession, raw: bytes) -> None:
        self.called()
        self.replies.append((session, raw))

    def fail(
        self, request: InFlightRequest, status: Status, text: str, retry_after_s: float = 0.0
    ) -> None:
        self.called()
        self.retries.append(retry_after_s)
        self.failures.append((request, status, text))

    def refuse_unknown(self, header: Header, client_id: str, episode_id: str) -> None:
        self.called()
        self.unknown.append((client_id, header.session_epoch))

    def on_placed(
        self, request: InFlightRequest, placement: Placement, server: str, policy: str
    ) -> None:
        self.called()
        self.decisions.append((request.session, request, placement))

    def reopen_session(self, session: ClientSession, server: str) -> None:
        self.called()
        self.reopened.append((session, server))

    def wake(self) -> None:
        self.called()
        self.wakes += 1

    def on_replied(
        self, request: InFlightRequest, server: str, raw: bytes, reply: ReplySummary
    ) -> None:
        self.called()
        self.served_by.append((request, server, reply))

    def on_dropped(self, request: InFlightRequest, reason: str) -> None:
        self.called()
        self.ended.append((request, reason))

    def on_requested(
        self, session: ClientSession, raw: bytes, header: Header, executed: ExecutionReport | None
    ) -> None:
        self.called()
        self.heard.append((session, header, executed))

    def on_refused(
        self, session: ClientSession, header: Header, executed: ExecutionReport | None
    ) -> None:
        self.called()
        self.refused.append((session, header, executed))
