# SPDX-License-Identifier: Apache-2.0
"""
Call several replicas concurrently with a time limit, and skip unresponsive ones.

Called by the thread `control`; the calls run in a pool of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from lerobot_serve.contract.records import GetStatusResponse
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.links.server_client import ServerClient

T = TypeVar('T')
# why a call has no result
CallFailure = SessionRefused | ServerUnreachable
CALL_THREADS = 8
UNRESPONSIVE_TEXT = 'last call timed out; calls resume after a successful probe'


class ReplicaCallPool:
    """
    Calls replicas concurrently. A replica whose call times out is unresponsive: it is not called
    and counts as unreachable until a probe succeeds.
    """

    def __init__(self, clients: Mapping[str, ServerClient]) -> None:
        self.clients = clients
        self._pool = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix='call')
        # unresponsive server -> its probe, None before the first
        self._probes: dict[str, Future[GetStatusResponse] | None] = {}

    def each(
        self, servers: list[str], call: Callable[[ServerClient], T]
    ) -> dict[str, T | CallFailure]:
        """Return the result of `call`, or its SessionRefused or ServerUnreachable, per server."""
        futures = {
            name: self.submit(name, call) for name in servers if not self.is_unresponsive(name)
        }
        outcomes: dict[str, T | CallFailure] = {
            name: ServerUnreachable(UNRESPONSIVE_TEXT) for name in servers
        }
        for name, future in futures.items():
            outcome = _outcome(future)
            outcomes[name] = outcome
            if isinstance(outcome, ServerUnreachable):
                self._probes[name] = None
        return outcomes

    def submit(self, server: str, call: Callable[[ServerClient], T]) -> Future[T]:
        """Call one server and return the future of its result."""
        return self._pool.submit(call, self.clients[server])

    def is_unresponsive(self, server: str) -> bool:
        """Return whether its last call timed out and no probe has succeeded since."""
        probe = self._probes.get(server)
        if probe and probe.done():
            outcome = _outcome(probe)
            if isinstance(outcome, Exception):
                self._probes[server] = None
            else:
                del self._probes[server]
        return server in self._probes

    @property
    def unresponsive(self) -> set[str]:
        """The unresponsive servers, which are not called."""
        return {server for server in tuple(self._probes) if self.is_unresponsive(server)}

    def probe(self, timeout_s: float) -> None:
        """Start a status call to each unresponsive server without a probe."""
        for server in self.unresponsive:
            if self._probes[server] is None:
                self._probes[server] = self.submit(server, lambda c: c.status(timeout_s))

    def close(self) -> None:
        """Wait until running calls have ended (each has a time limit) and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _outcome(future: Future[T]) -> T | CallFailure:
    try:
        return future.result()
    except (SessionRefused, ServerUnreachable) as error:
        return error
