# SPDX-License-Identifier: Apache-2.0
"""
Requests without a session over Zenoh, and their withdrawal by the client that sent them.

A client names its request in the attachment of the query. The methods run in the node's executor;
any thread may deliver a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
import threading

import zenoh

from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.zenoh.keys import client_of, NOT_WITHDRAWN, WITHDRAWN

# a request and what receives its reply
SubmitPrediction = Callable[[bytes, Callable[[Chunk], None]], str]


class Predictions:
    """`submit` and `withdraw` as in ServerEndpoint.serve_predictions."""

    def __init__(self, submit: SubmitPrediction, withdraw: Callable[[str], bool]) -> None:
        self._submit, self._withdraw = submit, withdraw
        # client and its name of a request -> the key of that request; empty until it has one
        self._keys: dict[tuple[str, bytes], str] = {}
        self._lock = threading.Lock()

    async def predict(self, raw: bytes, query: zenoh.Query) -> None:
        """Submit a request; the query is replied to once."""
        name = _request_name(query, query.attachment)

        def reply(chunk: Chunk) -> None:
            with self._lock:
                self._keys.pop(name, None)
            with query:
                query.reply(query.key_expr, wire_chunk.encode(chunk))

        with self._lock:
            self._keys[name] = ''
        try:
            key = self._submit(raw, reply)
        except Exception:
            with self._lock:
                self._keys.pop(name, None)
            raise
        with self._lock:
            # unless the reply came first
            if name in self._keys:
                self._keys[name] = key

    async def withdraw(self, query: zenoh.Query) -> None:
        """Withdraw the request that the payload names; reply whether it was still waiting."""
        name = _request_name(query, query.payload)
        with self._lock:
            key = self._keys.get(name, '')
        is_withdrawn = bool(key) and self._withdraw(key)
        if is_withdrawn:
            with self._lock:
                self._keys.pop(name, None)
        with query:
            query.reply(query.key_expr, WITHDRAWN if is_withdrawn else NOT_WITHDRAWN)


def _request_name(query: zenoh.Query, name: zenoh.ZBytes | None) -> tuple[str, bytes]:
    """Return the client of a query and its name of a request."""
    return client_of(str(query.key_expr)).prefix, name.to_bytes() if name else b''
