# SPDX-License-Identifier: Apache-2.0
"""
Open one session of the router as sessions with replicas of every slot. The thread `control`.

In each slot the least loaded replicas hold it: the preferred one and the standby replicas. A
client that is incompatible with a slot is refused; a slot that is not available is not used, and
gets the session when it is back.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import ServerUnreachable, SessionRefused, SessionRequest

# refusals that may not repeat; any other is final
RETRYABLE_REFUSALS = {
    Refusal.UNREACHABLE,
    Refusal.NOT_READY,
    Refusal.DRAINING,
    Refusal.CAPACITY,
    Refusal.EXCLUSIVE_IN_USE,
}
CALL_THREADS = 8
UNRESPONSIVE_TEXT = 'last call timed out; calls resume after a successful probe'


class ReplicaClient(Protocol):
    """A client of one replica, as ros.session_client has it; `topic` receives its replies."""

    topic: str

    def open(self, ask: SessionRequest, timeout_s: float) -> Any: ...

    def close(self, ask: SessionRequest, timeout_s: float) -> Any: ...

    def reset(self, request: Any, timeout_s: float) -> Any: ...

    def status(self, timeout_s: float) -> Any: ...

    def is_matched(self, timeout_s: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class SlotOpening:
    """The result in one slot: the replicas that hold the session, a reply or a refusal."""

    places: tuple[str, ...] = ()
    reply: Any = None
    refused: SessionRefused | None = None


class ReplicaCallPool:
    """
    Calls several replicas at once. A replica that does not reply is unresponsive: it counts as
    unreachable without being called, until a probe succeeds.
    """

    def __init__(self, clients: dict[str, ReplicaClient]) -> None:
        self.clients = clients
        self._pool = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix='call')
        # unresponsive servers, each with its probe
        self._probes: dict[str, Future | None] = {}

    def each(self, servers: list[str], act: Callable[[ReplicaClient], Any]) -> dict[str, Any]:
        """Return the result of `act`, or its SessionRefused or ServerUnreachable, by server."""
        futures = {
            name: self.later(name, act) for name in servers if not self.is_unresponsive(name)
        }
        outcomes = {name: ServerUnreachable(UNRESPONSIVE_TEXT) for name in servers}
        for name, future in futures.items():
            outcomes[name] = _outcome(future)
            if isinstance(outcomes[name], ServerUnreachable):
                self._probes[name] = None
        return outcomes

    def later(self, server: str, act: Callable[[ReplicaClient], Any]) -> Future:
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


def _outcome(future: Future) -> Any:
    try:
        return future.result()
    except (SessionRefused, ServerUnreachable) as error:
        return error


def open_in_slot(
    slot: Slot,
    ask: SessionRequest,
    callers: ReplicaCallPool,
    *,
    wanted: int,
    besides: tuple[str, ...] = (),
    timeout_s: float,
) -> SlotOpening:
    """
    Open the session on `wanted` replicas of a slot, or on as many as there are.

    Raises SessionRefused for an incompatible client; sessions opened so far are closed.
    """
    if slot.misfit:
        return SlotOpening(
            refused=SessionRefused(Refusal.NOT_READY, f'slot {slot.name}: {slot.misfit}')
        )
    opened: dict[str, Any] = {}
    asked = set(besides)
    failure: SessionRefused | None = None
    while len(opened) < wanted and (
        replicas := choose_replicas(slot, asked, wanted - len(opened))
    ):
        asked |= {replica.name for replica in replicas}
        names = [replica.name for replica in replicas]
        outcomes = callers.each(names, lambda client: _open(client, ask, timeout_s))
        # note all opened ones first: a final refusal closes them again
        opened |= {n: o for n, o in outcomes.items() if not isinstance(o, Exception)}
        for name in [name for name in names if name not in opened]:
            failure = _as_refused(slot, name, outcomes[name])
            if failure.code not in RETRYABLE_REFUSALS:
                close_at_replicas(list(opened), ask, callers, timeout_s)
                raise failure
    if opened:
        return SlotOpening(tuple(opened), next(iter(opened.values())))
    text = slot.text or 'every replica already has this session'
    code = Refusal.UNREACHABLE if not slot.has_ready_replica else Refusal.NOT_READY
    return SlotOpening(refused=failure or SessionRefused(code, f'slot {slot.name}: {text}'))


def choose_replicas(slot: Slot, besides: set[str], count: int) -> list[Replica]:
    """Return the least loaded replicas that are ready."""
    chosen: list[Replica] = []
    while len(chosen) < count:
        replica = slot.choose(besides | {each.name for each in chosen})
        if replica is None:
            break
        chosen.append(replica)
    return chosen


def _open(client: ReplicaClient, ask: SessionRequest, timeout_s: float) -> Any:
    reply = open_at_replica(client, ask, timeout_s)
    # a service replies before its topics are matched; requests sent by then are lost
    if not client.is_matched(timeout_s):
        client.close(ask, timeout_s)
        raise ServerUnreachable(f'its topics were not found within {timeout_s:g} s')
    return reply


def open_at_replica(client: ReplicaClient, ask: SessionRequest, timeout_s: float) -> Any:
    """
    Return the reply of a session that is open there, now or already. Raises Refused and
    Unreachable.
    """
    return client.open(replace(ask, reply_topic=client.topic), timeout_s)


def _as_refused(slot: Slot, server: str, error: Exception) -> SessionRefused:
    code = error.code if isinstance(error, SessionRefused) else Refusal.UNREACHABLE
    return SessionRefused(code, f'slot {slot.name} ({server}): {error}')


def close_at_replicas(
    servers: list[str], ask: SessionRequest, callers: ReplicaCallPool, timeout_s: float
) -> list[str]:
    """Close the session at the servers; return those that could not be reached."""
    outcomes = callers.each(servers, lambda client: client.close(ask, timeout_s))
    return [name for name, outcome in outcomes.items() if isinstance(outcome, Exception)]
