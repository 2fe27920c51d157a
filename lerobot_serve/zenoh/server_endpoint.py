# SPDX-License-Identifier: Apache-2.0
"""
A policy server or router as Zenoh sees it: its services, what it receives, and its presence.

Built by the thread that builds the node. A thread of Zenoh passes observations on; services run
where `run` runs them, which is the node's executor.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, Protocol

import zenoh

from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.header import read_envelope
from lerobot_serve.zenoh.keys import client_of, ClientKeys, Role, ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.traffic import Traffic

Handler = Callable[[Any, Any], Any]
# a request and what receives its reply
SubmitPrediction = Callable[[bytes, Callable[[Chunk], None]], object]
PREDICT_CHUNK = 'predict_chunk'


class ServerMessages(Protocol):
    """Requests and responses as CDR bytes; ros.contract.service_bytes implements it."""

    def read_request(self, service: str, raw: bytes) -> Any:
        """Raises ValueError for bytes that are no request of this service."""

    def client_id(self, service: str, request: Any) -> str:
        """Return whom a request speaks for; empty without a client."""

    def reply_topic(self, service: str, request: Any) -> str:
        """Return where a request wants replies; empty without a session."""

    def new_response(self, service: str) -> Any: ...

    def encode(self, message: Any) -> bytes: ...


class ServerEndpoint:
    """`handlers` maps the name of each service to its function of request and response."""

    def __init__(
        self,
        link: ZenohLink,
        server: str,
        handlers: Mapping[str, Handler],
        messages: ServerMessages,
        *,
        run: Callable[[Callable[[], Coroutine[Any, Any, None]]], object],
        on_observation: Callable[[bytes], None],
        on_drop: Callable[[str], None],
    ) -> None:
        self.keys = ServerKeys(link.settings.site, server)
        self._link, self._messages, self._run, self._on_drop = link, messages, run, on_drop
        self._pass_on = on_observation
        self._queryables = [
            link.serve(self.keys.clients.service(name), partial(self._on_query, name, handler))
            for name, handler in handlers.items()
        ]
        self._observations = link.subscribe(self.keys.clients.observation, self._on_observation)
        self._status = link.publisher(self.keys.status, Traffic.STATUS)
        # last: whoever sees it finds all of the above
        self._token = link.declare_alive(self.keys.alive)

    def publish_status(self, raw: bytes) -> None:
        self._status.put(raw)

    def publish_no_session(self, client_id: str, raw: bytes) -> None:
        """Reply to a client without a session."""
        self._link.put(self.keys.client(Role.ROBOT, client_id).no_session, raw, Traffic.CHUNK)

    def _on_observation(self, key: str, raw: bytes) -> None:
        """Thread of Zenoh."""
        try:
            client_id = read_envelope(raw).client_id
        except Malformed as error:
            self._on_drop(error.reason)
            return
        if client_of(key).may_speak_for(client_id):
            self._pass_on(raw)
        else:
            self._on_drop('wrong_client')

    def _on_query(self, name: str, handler: Handler, query: zenoh.Query) -> None:
        """Thread of Zenoh."""
        payload = query.payload
        try:
            request = self._messages.read_request(name, payload.to_bytes() if payload else b'')
            self._check_speaker(client_of(str(query.key_expr)), name, request)
        except ValueError as error:
            self._on_drop('malformed_service_request')
            with query:
                query.reply_err(f'{name}: {error}'.encode())
            return
        self._run(partial(self._answer, name, handler, request, query))

    def _check_speaker(self, client: ClientKeys, name: str, request: Any) -> None:
        """Raise ValueError for a request of one client for another."""
        client_id = self._messages.client_id(name, request)
        if client_id and not client.may_speak_for(client_id):
            raise ValueError(
                f'client_id is {client_id!r}, and {client.prefix} speaks for itself alone'
            )
        topic = self._messages.reply_topic(name, request)
        if topic and not client.may_reply_on(topic):
            raise ValueError(f'reply_topic must be {client.replies()}, got {topic!r}')

    async def _answer(self, name: str, handler: Handler, request: Any, query: zenoh.Query) -> None:
        """The node's executor; a handler of a router awaits its servers."""
        with query:
            response = handler(request, self._messages.new_response(name))
            if isawaitable(response):
                response = await response
            query.reply(query.key_expr, self._messages.encode(response))

    def serve_predictions(
        self, submit: Callable[[bytes, Callable[[Chunk], None]], object]
    ) -> None:
        """
        Serve requests without a session: one observation, one chunk. `submit` runs where services
        run; any thread may reply.
        """

        def on_query(query: zenoh.Query) -> None:
            raw = query.payload.to_bytes() if query.payload else b''
            try:
                speaker = client_of(str(query.key_expr))
                if not speaker.may_speak_for(read_envelope(raw).client_id):
                    raise ValueError(f'{speaker.prefix} speaks for itself alone')
            except ValueError as error:
                self._on_drop('malformed_service_request')
                with query:
                    query.reply_err(f'predict_chunk: {error}'.encode())
                return
            self._run(partial(self._predict, submit, raw, query))

        self._queryables.append(
            self._link.serve(self.keys.clients.service(PREDICT_CHUNK), on_query)
        )

    async def _predict(
        self,
        submit: SubmitPrediction,
        raw: bytes,
        query: zenoh.Query,
    ) -> None:
        """The node's executor."""

        def reply(chunk: Chunk) -> None:
            with query:
                query.reply(query.key_expr, wire_chunk.encode(chunk))

        submit(raw, reply)

    def close(self) -> None:
        """Say goodbye, then end; the session stays open."""
        self._token.undeclare()
        for queryable in self._queryables:
            queryable.undeclare()
        self._observations.undeclare()
        self._status.undeclare()
