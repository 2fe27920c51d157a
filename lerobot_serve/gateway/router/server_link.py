# SPDX-License-Identifier: Apache-2.0
"""
The link to the router: its services, requests, and the replies to all callers of the gateway.

Implemented over ROS 2 in gateway.ros.ros_link and over Zenoh in gateway.ros.zenoh_link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.records import (
    GetStatusResponse,
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
)


class Presence(Enum):
    """What a link noticed about the router."""

    # it may be back
    THERE = 'there'
    # it closed the replies: it ends, restarts, or has no session of this gateway left
    CLOSED = 'closed'
    # killed, hung or cut off
    LOST = 'lost'


@dataclass(frozen=True, slots=True)
class LinkCallbacks:
    """What a link calls in threads of its own; each deposits and returns."""

    on_chunk: Callable[[bytes], None]
    on_no_session: Callable[[bytes], None]
    on_presence: Callable[[Presence], None]


class ServerLink(Protocol):
    """See the module. Methods with a timeout block; the event loop calls the others."""

    @property
    def server(self) -> str:
        """The name of the router."""

    def reply_topic(self, session_epoch: int, /) -> str:
        """Return where the router replies in one session."""

    def send(self, raw: Outgoing, /) -> None:
        """Publish the bytes of an Observation."""

    def announce(self, request: ResetEpisodeRequest, on_refusal: Callable[[str], None], /) -> None:
        """Announce the next episode of a session; another thread calls `on_refusal`."""

    def status(self, timeout_s: float, /) -> GetStatusResponse:
        """Return the status. Raises ServerUnreachable."""

    def open(
        self, session_request: OpenSessionRequest, timeout_s: float, /
    ) -> OpenSessionResponse:
        """Open a session. Raises SessionRefused and ServerUnreachable."""

    def wait_until_matched(self, timeout_s: float, /) -> bool:
        """Wait until requests and replies pass; return False after the timeout."""

    def close_session(self, session_request: OpenSessionRequest, timeout_s: float, /) -> object:
        """Close a session. Raises ServerUnreachable."""
