# SPDX-License-Identifier: Apache-2.0
"""What the data path sends, and to whom: one direction, out. A Protocol without ROS."""

from __future__ import annotations

from typing import Protocol

from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.wire.schema import Status


class Transport(Protocol):
    """Called without the lock of the routing table, by any thread of the data path."""

    def send(self, server: str, raw: bytes) -> None:
        """Publish a request to a replica."""

    def reply(self, session: ClientSession, raw: bytes) -> None:
        """Publish a reply to a client."""

    def fail(self, request: InFlightRequest, status: Status, text: str) -> None:
        """Reply to a client without actions."""
