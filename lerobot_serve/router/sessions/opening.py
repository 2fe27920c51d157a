"""
One session with the router is sessions with replicas of every slot. The control thread.

In each slot the least loaded replicas get it: the one that is to serve, and as many again as stand
by for it. A robot that does not fit a slot is refused; a slot that is not available is done
without, and gets the session when it is back.
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

# the slot may take this robot another time; everything else it will refuse again
RETRYABLE_REFUSALS = {
    Refusal.UNREACHABLE,
    Refusal.NOT_READY,
    Refusal.DRAINING,
    Refusal.CAPACITY,
    Refusal.EXCLUSIVE_IN_USE,
}
CALL_THREADS = 8
UNRESPONSIVE_TEXT = 'it did not answer the call before; it is asked again as soon as it answers'


class ReplicaClient(Protocol):
    """A client of one replica, as ros.session_client has it; `topic` is where it answers."""

    topic: str

    def open(self, ask: SessionRequest, timeout_s: float) -> Any: ...

    def close(self, ask: SessionRequest, timeout_s: float) -> Any: ...

    def reset(self, request: Any, timeout_s: float) -> Any: ...

    def status(self, timeout_s: float) -> Any: ...

    def is_matched(self, timeout_s: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class SlotOpening:
    """What came of a slot: the replicas that have the session, the reply, or why there is none."""

    places: tuple[str, ...] = ()
    reply: Any = None
    refused: SessionRefused | None = None


class ReplicaCallPool:
    """
    Asks several replicas at once: one that hangs keeps nobody waiting longer than once. Then it
    is quiet, and Unreachable without being called, until it has answered a probe.
    """

    def __init__(self, clients: dict[str, ReplicaClient]) -> None:
        self.clients = clients
        self._pool = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix='call')
        # who is quiet, and the call that is to show whether it still is
        self._probes: dict[str, Future | None] = {}

    def each(self, servers: list[str], act: Callable[[ReplicaClient], Any]) -> dict[str, Any]:
        """Return what `act` returned or raised, Refused or Unreachable, for each server."""
        futures = {name: self.later(name, act) for name in servers if not self.is_quiet(name)}
        outcomes = {name: ServerUnreachable(UNRESPONSIVE_TEXT) for name in servers}
        for name, future in futures.items():
            outcomes[name] = _outcome(future)
            if isinstance(outcomes[name], ServerUnreachable):
                self._probes[name] = None
        return outcomes

    def later(self, server: str, act: Callable[[ReplicaClient], Any]) -> Future:
        """Ask one, without waiting for it."""
        return self._pool.submit(act, self.clients[server])

    def is_quiet(self, server: str) -> bool:
        """Return whether it left a call unanswered and has answered none since."""
        probe = self._probes.get(server)
        if probe and probe.done():
            if isinstance(_outcome(probe), Exception):
                self._probes[server] = None
            else:
                del self._probes[server]
        return server in self._probes

    @property
    def quiet(self) -> set[str]:
        """Who is not called."""
        return {server for server in tuple(self._probes) if self.is_quiet(server)}

    def probe(self, timeout_s: float) -> None:
        """Ask those that are quiet, without waiting for it."""
        for server in self.quiet:
            if self._probes[server] is None:
                self._probes[server] = self.later(server, lambda c: c.status(timeout_s))

    def close(self) -> None:
        """Let the threads end; calls that are under way have bounds of their own."""
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

    Raises Refused when the robot does not fit; then what was opened is closed again.
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
        # all that were opened first: where one refuses, they are closed again
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
    # a service answers before its topics are found; what is sent by then is lost
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
    """End the session there; return who could not be told."""
    outcomes = callers.each(servers, lambda client: client.close(ask, timeout_s))
    return [name for name, outcome in outcomes.items() if isinstance(outcome, Exception)]
