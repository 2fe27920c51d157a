# SPDX-License-Identifier: Apache-2.0
"""The sending side of the data path, as a Protocol without ROS."""

from __future__ import annotations

from typing import Protocol

from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.sessions.client_sessions import ClientSession


class Transport(Protocol):
    """Called by any thread of the data path, without RoutingTable.lock."""

    def send(self, server: str, raw: bytes) -> None:
        """Send a request to a replica."""

    def reply(self, session: ClientSession, raw: bytes) -> None:
        """Send a reply to a client."""

    def fail(
        self, request: InFlightRequest, status: Status, text: str, retry_after_s: float = 0.0
    ) -> None:
        """Send a reply without actions to a client, which may send again after this time."""

    def refuse_unknown(self, header: Header, client_id: str, episode_id: str) -> None:
        """Reply NO_SESSION to a request whose session is not known here."""
