# SPDX-License-Identifier: Apache-2.0
"""The transport of requests: bytes down to a server; replies arrive in the inbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.records import OpenSessionResponse


class Transport(Protocol):
    """Connection to the servers; PolicyServerTransport implements it. The request thread."""

    def is_available(self, server: str) -> bool:
        """Return whether the services of this server are available."""

    def open_session(self, server: str, epoch: int) -> OpenSessionResponse:
        """Open a session; return what was agreed. Raises SessionRefused or ServerUnreachable."""

    def close_session(self) -> None:
        """Close the session with the current server; its reply is ignored."""

    def reset_episode(self, epoch: int, episode: int, episode_id: str) -> None:
        """Notify the current server of a new episode; its reply is only logged."""

    def send(self, raw: Outgoing) -> None:
        """Publish a request to the current server."""

    def probe(self, on_reply: Callable[[], None]) -> None:
        """
        Probe the current server without waiting; another thread calls `on_reply` on its response.
        """
