# SPDX-License-Identifier: Apache-2.0
"""
Requests without a session over Zenoh, and their withdrawal by the client that sent them.

A client names its request in the attachment of the query. The methods run in the node's executor;
any thread may deliver a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import threading

import zenoh

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.zenoh.keys import client_of, NOT_WITHDRAWN, WITHDRAWN

# a request and what receives its reply
SubmitPrediction = Callable[[bytes, Callable[[Chunk], None]], str]


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A request without a reply; `key` names it at the policy, empty until it has one."""

    on_end: Callable[[], None]
    key: str = ''


class Predictions:
    """`submit` and `withdraw` as in ServerEndpoint.serve_predictions."""

    def __init__(self, submit: SubmitPrediction, withdraw: Callable[[str], bool]) -> None:
        self._submit, self._withdraw = submit, withdraw
        # by client and its name of the request
        self._waiting: dict[tuple[str, bytes], WaitingRequest] = {}
        self._lock = threading.Lock()

    async def predict(self, raw: bytes, query: zenoh.Query, on_end: Callable[[], None]) -> None:
        """
        Submit a request; the query is replied to once. `on_end` is called once the request has its
        reply, is withdrawn or fails, maybe twice.
        """
        name, request = _request_name(query, query.attachment), WaitingRequest(on_end)

        def reply(chunk: Chunk) -> None:
            self._end(name, request)
            with query:
                query.reply(query.key_expr, wire_chunk.encode(chunk))

        with self._lock:
            self._waiting[name] = request
        try:
            request.key = self._submit(raw, reply)
        except Exception:
            self._end(name, request)
            raise

    def _end(self, name: tuple[str, bytes], request: WaitingRequest) -> None:
        with self._lock:
            # a client may use a name again
            if self._waiting.get(name) is request:
                del self._waiting[name]
        request.on_end()

    async def withdraw(self, query: zenoh.Query) -> None:
        """Withdraw the request that the payload names; reply whether it was still waiting."""
        name = _request_name(query, query.payload)
        request = self._waiting.get(name)
        is_withdrawn = request is not None and bool(request.key) and self._withdraw(request.key)
        if request and is_withdrawn:
            self._end(name, request)
        with query:
            query.reply(query.key_expr, WITHDRAWN if is_withdrawn else NOT_WITHDRAWN)


def _request_name(query: zenoh.Query, name: zenoh.ZBytes | None) -> tuple[str, bytes]:
    """Return the client of a query and its name of a request."""
    return client_of(str(query.key_expr)).prefix, name.to_bytes() if name else b''
