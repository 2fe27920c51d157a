# SPDX-License-Identifier: Apache-2.0
"""
What a link carries between a client and one server: calls, requests and replies as bytes.

Implemented over ROS 2 in links.ros.link and over Zenoh in links.zenoh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, unique
from typing import Protocol

from lerobot_serve.contract.cdr import Outgoing


@unique
class Presence(Enum):
    """What a link knows of a server: it is there, or how it was lost."""

    THERE = 'server is there'
    CLOSED = 'server closed the session or exited'
    EXPIRED = 'liveliness lease expired ({lease_s:g} s): killed, suspended or unreachable'
    # over Zenoh, which reports no reason
    GONE = 'server exited, was killed, is suspended or unreachable'
    AMBIGUOUS = 'another server has the same name'


OnPresence = Callable[[Presence], None]


def ignore(_: Presence) -> None:
    """For one who asks whether the server is available."""


@dataclass(frozen=True, slots=True)
class LinkCallbacks:
    """
    What a link calls in threads of its own; each deposits and returns. Without `on_no_session`
    replies to requests without a session are not received.
    """

    on_chunk: Callable[[bytes], None]
    on_no_session: Callable[[bytes], None] | None = None
    on_presence: OnPresence = ignore


class Link(Protocol):
    """
    Calls and requests to one server. `conflict` is why no server is used under this name, with the
    remedy; empty for one server. `reports_goodbye` is whether the link itself reports a server
    that ends in order.
    """

    server: str
    conflict: str
    reports_goodbye: bool

    def listen(self, on_presence: OnPresence, /) -> None:
        """Begin to watch the server, once."""

    def is_available(self) -> bool:
        """Return whether the server is there, and only one of its name."""

    def is_read(self) -> bool:
        """Return whether the server reads the requests."""

    def call(self, service: str, request: bytes, timeout_s: float, /) -> bytes:
        """Return the response of a service. Blocks. Raises ServerUnreachable."""

    def start_call(
        self,
        service: str,
        request: bytes,
        on_response: Callable[[bytes], None],
        on_refusal: Callable[[str], None],
        /,
    ) -> Callable[[], None]:
        """
        Call without waiting; return what ends the wait for the response. Another thread gets the
        response, or the refusal; neither when the server is away.
        """

    def publish(self, raw: Outgoing, /) -> None:
        """Send the bytes of an Observation. Raises ServerUnreachable for a closed link."""

    def close(self) -> None:
        """Destroy all endpoints; the server sees this client go."""


class Replies(Protocol):
    """Where the replies of one server arrive, for one purpose of a client."""

    def listen(self, callbacks: LinkCallbacks, /) -> None:
        """Begin to receive, once."""

    def topic(self, session_epoch: int, /) -> str:
        """Return where the server replies in one session."""

    def are_connected(self) -> bool:
        """Return whether replies of the server would arrive."""

    def close(self) -> None:
        """Receive nothing any more."""
