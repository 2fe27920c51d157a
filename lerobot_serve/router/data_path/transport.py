# SPDX-License-Identifier: Apache-2.0
"""What the dispatcher needs of its surroundings: a Protocol without ROS."""

from __future__ import annotations

from typing import Protocol

from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.wire.chunk import ReplySummary
from lerobot_serve.wire.execution_report import ExecutionReport
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.schema import Status


class Transport(Protocol):
    """Called without the dispatcher's lock, by any of its threads; the node implements it."""

    def send(self, server: str, raw: bytes) -> None:
        """Publish a request to a replica."""

    def reply(self, robot: ClientSession, raw: bytes) -> None:
        """Publish a reply to a client."""

    def fail(self, flight: InFlightRequest, status: Status, text: str) -> None:
        """Reply to a client without actions."""

    def on_placed(
        self, robot: ClientSession, flight: InFlightRequest, placement: Placement
    ) -> None:
        """Handle an episode that was placed, or moved."""

    def reopen_session(self, robot: ClientSession, server: str) -> None:
        """Reopen a session that a replica has lost."""

    def wake(self) -> None:
        """Wake the timer: something is due earlier than it expects."""

    def on_replied(
        self, flight: InFlightRequest, server: str, raw: bytes, answer: ReplySummary
    ) -> None:
        """Handle a reply that was sent to a client, with actions or without."""

    def on_dropped(self, flight: InFlightRequest, reason: str) -> None:
        """Handle a request that ended without a reply."""

    def on_requested(
        self, robot: ClientSession, raw: bytes, header: Header, executed: ExecutionReport | None
    ) -> None:
        """Handle a request that arrived, with the report of executed actions."""
