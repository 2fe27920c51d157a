# SPDX-License-Identifier: Apache-2.0
"""The link to the router over Zenoh. All callers are below the name of the gateway's node."""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.contract.services.session import SessionRequest
from lerobot_serve.gateway.ros.ros_link import reset_request
from lerobot_serve.gateway.router.server_link import (
    LinkCallbacks,
    Presence,
    SessionReply,
    StatusReply,
)
from lerobot_serve.ros.contract import service_bytes
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.replies import ZenohReplies
from lerobot_serve.zenoh.session_client import QueuedSessionClient


class ZenohServerLink:
    """
    A ServerLink; its callbacks run in threads of Zenoh. `gateway` is the full name of the node; to
    the router it is one with the sessions of many, as another router is.
    """

    def __init__(
        self,
        link: ZenohLink,
        server: str,
        gateway: str,
        callbacks: LinkCallbacks,
        *,
        on_drop: Callable[[str], None],
        lifespan_s: float,
    ) -> None:
        """`on_drop` gets `link_full` for a request that waited for `lifespan_s`; any thread."""
        self.server, self._link, self._callbacks = server, link, callbacks
        self._client = QueuedSessionClient(
            link,
            server,
            gateway,
            service_bytes,
            self._on_presence,
            on_drop=on_drop,
            lifespan_s=lifespan_s,
        )
        self._replies = ZenohReplies(
            link,
            {server: self._client.keys},
            on_chunk=callbacks.on_chunk,
            on_no_session=callbacks.on_no_session,
        )

    def _on_presence(self, is_alive: bool) -> None:
        self._callbacks.on_presence(Presence.THERE if is_alive else Presence.LOST)

    def is_available(self) -> bool:
        """Return whether the router is there."""
        return self._client.is_available()

    def reply_topic(self, session_epoch: int) -> str:
        """Return the key on which the router replies in one session."""
        return self._replies.topic(self.server, session_epoch)

    def send(self, raw: bytes) -> None:
        """Queue the bytes of an Observation; never waits for the uplink."""
        self._client.send(raw)

    def announce(
        self,
        client_id: str,
        session_epoch: int,
        episode: int,
        episode_id: str,
        on_refusal: Callable[[str], None],
    ) -> None:
        """Announce the next episode of a session; a thread of Zenoh calls `on_refusal`."""
        self._client.announce(
            reset_request(client_id, session_epoch, episode, episode_id), on_refusal
        )

    def status(self, timeout_s: float) -> StatusReply:
        """Return the status. Blocks. Raises ServerUnreachable."""
        reply: StatusReply = self._client.status(timeout_s)
        return reply

    def open(self, session_request: SessionRequest, timeout_s: float) -> SessionReply:
        """Open a session. Blocks. Raises SessionRefused and ServerUnreachable."""
        reply: SessionReply = self._client.open(session_request, timeout_s)
        return reply

    def wait_until_matched(self, timeout_s: float) -> bool:
        """Wait until the router reads requests; return False after the timeout."""
        return self._client.wait_until_matched(lambda: int(self._client.is_available()), timeout_s)

    def close_session(self, session_request: SessionRequest, timeout_s: float) -> None:
        """Close a session. Blocks. Raises ServerUnreachable."""
        self._client.close(session_request, timeout_s)

    def close(self) -> None:
        """Close all endpoints and the link; the router sees the gateway go."""
        self._replies.close()
        self._client.destroy_endpoints()
        self._link.close()
