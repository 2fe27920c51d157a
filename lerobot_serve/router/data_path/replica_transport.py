# SPDX-License-Identifier: Apache-2.0
"""
Send requests to replicas and replies to clients.

Any thread of the data path. Clients and publishers are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.sessions.client_sessions import ClientSession


class ReplicaSender(Protocol):
    """Sends requests to a replica; see ros.replica_links."""

    def send(self, raw: bytes) -> None: ...


class ReplySender(Protocol):
    """Publishes on the reply topics of clients; see ros.contract.server_links."""

    def send(self, topic: str, raw: bytes) -> bool: ...


class ReplicaTransport:
    """The Transport of the node."""

    def __init__(
        self,
        clients: Mapping[str, ReplicaSender],
        replies: ReplySender,
        drops: DropCounters,
        publish_no_session: Callable[[Chunk], None],
    ) -> None:
        """`publish_no_session` is for clients without a session, which have no reply topic."""
        self._clients, self._replies, self._drops = clients, replies, drops
        self._publish_no_session = publish_no_session

    def send(self, server: str, raw: bytes) -> None:
        self._clients[server].send(raw)

    def reply(self, session: ClientSession, raw: bytes) -> None:
        if not self._replies.send(session.request.reply_topic, raw):
            self._drops.add('no_client')

    def fail(
        self, request: InFlightRequest, status: Status, text: str, retry_after_s: float = 0.0
    ) -> None:
        """Reply with a chunk without actions."""
        chunk = Chunk(
            request.header.for_reply(Flag.NONE),
            request.session.request.client_id,
            request.episode_id,
            status=status,
            status_text=encodable_text(text),
            slot=request.slot,
            extensions=(wire_chunk.retry_after(retry_after_s),) if retry_after_s else (),
        )
        try:
            self.reply(request.session, wire_chunk.encode(chunk))
        except Unencodable:
            self._drops.add('unencodable')

    def refuse_unknown(self, header: Header, client_id: str, episode_id: str) -> None:
        """Reply NO_SESSION, so that the client opens another session."""
        text = f'no session of epoch {header.session_epoch} is open for {client_id!r}; open one'
        self._publish_no_session(
            Chunk(
                header.for_reply(Flag.NONE),
                client_id,
                episode_id,
                status=Status.NO_SESSION,
                status_text=encodable_text(text),
            )
        )
