# SPDX-License-Identifier: Apache-2.0
"""
The link to the policy servers: a client for each of them, and their replies to this robot.

Implemented over ROS 2 in edge.ros.server_links, over Zenoh in edge.session.transport.zenoh_link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lerobot_serve.contract.records import (
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
)
from lerobot_serve.edge.session.servers import Loss


class ServerClient(Protocol):
    """Client of one server. The request thread."""

    def is_available(self) -> bool: ...

    def open(
        self, session_request: OpenSessionRequest, timeout_s: float, /
    ) -> OpenSessionResponse: ...

    def close(self, session_request: OpenSessionRequest, timeout_s: float, /) -> object: ...

    def probe(self, on_reply: Callable[[], None], /) -> None: ...

    def announce(
        self, request: ResetEpisodeRequest, on_refusal: Callable[[str], None], /
    ) -> None: ...

    def send(self, raw: bytes, /) -> None: ...

    def wait_until_matched(
        self, publisher_count: Callable[[], int], timeout_s: float, /
    ) -> bool: ...


class ServerLink(Protocol):
    """See the module."""

    @property
    def clients(self) -> Mapping[str, ServerClient]: ...

    def reply_topic(self, server: str, session_epoch: int) -> str:
        """Return where a server replies in one session."""

    def publisher_count(self, server: str) -> int:
        """Return how many writers of this server are connected."""

    def close(self) -> None: ...


class ServerLinks:
    """Several links, each with servers of its own."""

    def __init__(self, links: Sequence[ServerLink]) -> None:
        self.clients = {
            server: client for link in links for server, client in link.clients.items()
        }
        self._links = links
        self._of = {server: link for link in links for server in link.clients}

    def reply_topic(self, server: str, session_epoch: int) -> str:
        """Return where a server replies in one session."""
        return self._of[server].reply_topic(server, session_epoch)

    def publisher_count(self, server: str) -> int:
        """Return how many writers of this server are connected."""
        return self._of[server].publisher_count(server)

    def close(self) -> None:
        """Close all links; call it once their threads have ended."""
        for link in self._links:
            link.close()


@dataclass(frozen=True, slots=True)
class ReplyCallbacks:
    """
    What a link calls, in a thread of its own, when something arrives.

    `on_presence` receives the server, how many of its writers are alive, the change, and how one
    was lost if one was.
    """

    on_chunk: Callable[[bytes], None]
    on_no_session: Callable[[bytes], None]
    on_presence: Callable[[str, int, int, Loss], None]
