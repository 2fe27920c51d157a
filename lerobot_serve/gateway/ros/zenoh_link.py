# SPDX-License-Identifier: Apache-2.0
"""The link to the router over Zenoh. All callers are below the name of the gateway's node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lerobot_serve.gateway.router.server_link import LinkCallbacks, Presence
from lerobot_serve.local.path import MakePath
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
        make_path: MakePath | None = None,
    ) -> None:
        """
        `on_drop` gets `link_full` for a request that waited for `lifespan_s`; any thread.
        `make_path` makes the local path to a server of this host; None: without.
        """
        self.server, self._link, self._callbacks = server, link, callbacks
        self._client = QueuedSessionClient(
            link,
            server,
            gateway,
            self._on_presence,
            on_drop=on_drop,
            lifespan_s=lifespan_s,
        )
        if make_path:
            self._client.local = make_path(callbacks.on_chunk, self._on_gone)
        self._replies = ZenohReplies(
            link,
            {server: self._client.keys},
            on_chunk=callbacks.on_chunk,
            on_no_session=callbacks.on_no_session,
        )
        self.reply_topic = partial(self._replies.topic, server)
        self.send = self._client.send
        self.announce = self._client.announce
        self.status = self._client.status
        self.open = self._client.open
        self.close_session = self._client.close

    def _on_gone(self, is_lost: bool) -> None:
        """Thread `local`; Zenoh itself reports a goodbye."""
        if is_lost:
            self._on_presence(False)

    def _on_presence(self, is_alive: bool) -> None:
        self._callbacks.on_presence(Presence.THERE if is_alive else Presence.LOST)

    def wait_until_matched(self, timeout_s: float) -> bool:
        """Wait until the router reads requests; return False after the timeout."""
        return self._client.wait_until_matched(lambda: int(self._client.is_available()), timeout_s)

    def close(self) -> None:
        """Close all endpoints and the link; the router sees the gateway go."""
        self._replies.close()
        self._client.destroy_endpoints()
        self._link.close()
