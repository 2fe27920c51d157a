# SPDX-License-Identifier: Apache-2.0
"""The servers of a robot over Zenoh. Built by the thread that builds the node."""

from __future__ import annotations

from functools import partial

from lerobot_serve.contract.names import node_name
from lerobot_serve.edge.session.servers import Loss
from lerobot_serve.edge.session.transport.server_link import ReplyCallbacks
from lerobot_serve.local.path import MakePath
from lerobot_serve.zenoh.keys import Role
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.replies import ZenohReplies
from lerobot_serve.zenoh.session_client import ZenohSessionClient


class ZenohServerLink:
    """The ServerLink over Zenoh; its callbacks run in threads of Zenoh."""

    def __init__(
        self,
        link: ZenohLink,
        servers: tuple[str, ...],
        client_id: str,
        callbacks: ReplyCallbacks,
        make_path: MakePath | None = None,
    ) -> None:
        """`make_path` makes the local path to a server of this host; None: without."""
        self._link, self._callbacks = link, callbacks
        self._present: dict[str, bool] = {}
        self.clients: dict[str, ZenohSessionClient] = {}
        for server in servers:
            on_presence = partial(self._on_presence, server)
            client = self.clients[server] = ZenohSessionClient(
                link, node_name(server), Role.ROBOT, client_id, on_presence
            )
            if make_path:
                client.local = make_path(callbacks.on_chunk, partial(self._on_gone, server))
        self._replies = ZenohReplies(
            link,
            {server: client.keys for server, client in self.clients.items()},
            on_chunk=callbacks.on_chunk,
            on_no_session=callbacks.on_no_session,
        )

    def reply_topic(self, server: str, session_epoch: int) -> str:
        """Return the key on which a server replies in one session."""
        return self._replies.topic(server, session_epoch)

    def publisher_count(self, server: str) -> int:
        """Return 1 for a server that is there."""
        return int(self._present.get(server, False))

    def _on_gone(self, server: str, is_lost: bool) -> None:
        """Thread `local`; Zenoh itself reports a goodbye."""
        if is_lost:
            self._on_presence(server, False)

    def _on_presence(self, server: str, is_alive: bool) -> None:
        was_alive, self._present[server] = self._present.get(server, False), is_alive
        if is_alive != was_alive:
            change = 1 if is_alive else -1
            client = self.clients.get(server)
            loss = Loss.AMBIGUOUS if client and client.conflict else Loss.GONE
            self._callbacks.on_presence(server, int(is_alive), change, loss)

    def close(self) -> None:
        """Close all endpoints and the link; the servers see this robot go."""
        self._replies.close()
        for client in self.clients.values():
            client.destroy_endpoints()
        self._link.close()
