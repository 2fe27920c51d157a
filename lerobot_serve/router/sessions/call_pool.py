# SPDX-License-Identifier: Apache-2.0
"""
Call several replicas at once, with a time limit, and leave unresponsive ones alone.

The thread `control` calls; the calls run in a pool of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from lerobot_serve.wire.session import ServerUnreachable, SessionRefused, SessionRequest
from lerobot_serve_interfaces.srv import GetStatus, OpenSession, ResetEpisode

T = TypeVar('T')
# why a call has no result
CallFailure = SessionRefused | ServerUnreachable
CALL_THREADS = 8
UNRESPONSIVE_TEXT = 'last call timed out; calls resume after a successful probe'


class ReplicaClient(Protocol):
    """A client of one replica, as ros.session_client has it; `topic` receives its replies."""

    topic: str

    def open(self, ask: SessionRequest, timeout_s: float) -> OpenSession.Response: ...

    def close(self, ask: SessionRequest, timeout_s: float) -> object: ...

    def reset(self, request: ResetEpisode.Request, timeout_s: float) -> ResetEpisode.Response: ...

    def status(self, timeout_s: float) -> GetStatus.Response: ...

    def is_matched(self, timeout_s: float) -> bool: ...


class ReplicaCallPool:
    """
    Calls several replicas at once. A replica that does not reply is unresponsive: it counts as
    unreachable without being called, until a probe succeeds.
    """

    def __init__(self, clients: Mapping[str, ReplicaClient]) -> None:
        self.clients = clients
        self._pool = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix='call')
        # unresponsive servers, each with its probe
        self._probes: dict[str, Future[GetStatus.Response] | None] = {}

    def each(
        self, servers: list[str], act: Callable[[ReplicaClient], T]
    ) -> dict[str, T | CallFailure]:
        """Return the result of `act`, or its SessionRefused or ServerUnreachable, by server."""
        futures = {
            name: self.later(name, act) for name in servers if not self.is_unresponsive(name)
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

    def later(self, server: str, act: Callable[[ReplicaClient], T]) -> Future[T]:
        """Call one server without waiting for it."""
        return self._pool.submit(act, self.clients[server])

    def is_unresponsive(self, server: str) -> bool:
        """Return whether its last call timed out and no probe has succeeded since."""
        probe = self._probes.get(server)
        if probe and probe.done():
            if isinstance(_outcome(probe), Exception):
                self._probes[server] = None
            else:
                del self._probes[server]
        return server in self._probes

    @property
    def unresponsive(self) -> set[str]:
        """The servers that are not called."""
        return {server for server in tuple(self._probes) if self.is_unresponsive(server)}

    def probe(self, timeout_s: float) -> None:
        """Probe unresponsive servers without waiting for them."""
        for server in self.unresponsive:
            if self._probes[server] is None:
                self._probes[server] = self.later(server, lambda c: c.status(timeout_s))

    def close(self) -> None:
        """End the threads; running calls have time limits of their own."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _outcome(future: Future[T]) -> T | CallFailure:
    try:
        return future.result()
    except (SessionRefused, ServerUnreachable) as error:
        return error
