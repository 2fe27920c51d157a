# SPDX-License-Identifier: Apache-2.0
"""
Send requests to replicas and replies to clients.

Any thread of the data path. Clients and publishers are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lerobot_serve.contract.cdr import encodable_text, Raw
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.sessions.client_sessions import ClientSession


class ReplicaTransport:
    """See the module. Called without RoutingTable.lock."""

    def __init__(
        self,
        clients: Mapping[str, ServerClient],
        send_reply: Callable[[str, bytes], bool],
        drops: DropCounters,
        publish_no_session: Callable[[Chunk], None],
    ) -> None:
        """
        `send_reply` publishes on the reply topic of a client; `publish_no_session` is for clients
        without a session, which have none.
        """
        self._clients, self._send_reply, self._drops = clients, send_reply, drops
        self._publish_no_session = publish_no_session

    def send(self, server: str, raw: Raw) -> None:
        self._clients[server].send(raw)

    def reply(self, session: ClientSession, raw: bytes) -> None:
        if not self._send_reply(session.request.reply_topic, raw):
            self._drops.add('no_client')

    def fail(
        self, request: InFlightRequest, status: Status, text: str, retry_after_s: float = 0.0
    ) -> None:
        """Reply with a chunk without actions; the client may send again after this time."""
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
