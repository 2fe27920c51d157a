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

from lerobot_serve.router.replicas import Replica
from lerobot_serve.router.slots import Slot
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import Refused, SessionAsk, Unreachable

# the slot may take this robot another time; everything else it will refuse again
NOT_NOW = {
    Refusal.UNREACHABLE,
    Refusal.NOT_READY,
    Refusal.DRAINING,
    Refusal.CAPACITY,
    Refusal.EXCLUSIVE_IN_USE,
}
CALLERS = 8
QUIET = 'it did not answer the call before; it is asked again as soon as it answers'


class Client(Protocol):
    """A client of one replica, as ros.session_client has it; `topic` is where it answers."""

    topic: str

    def open(self, ask: SessionAsk, timeout_s: float) -> Any: ...

    def close(self, ask: SessionAsk, timeout_s: float) -> Any: ...

    def reset(self, request: Any, timeout_s: float) -> Any: ...

    def status(self, timeout_s: float) -> Any: ...

    def is_wired(self, timeout_s: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """What came of a slot: the replicas that have the session, the reply, or why there is none."""

    places: tuple[str, ...] = ()
    reply: Any = None
    refused: Refused | None = None


class Callers:
    """
    Asks several replicas at once: one that hangs keeps nobody waiting longer than once. Then it
    is quiet, and Unreachable without being called, until it has answered a probe.
    """

    def __init__(self, clients: dict[str, Client]) -> None:
        self.clients = clients
        self._pool = ThreadPoolExecutor(CALLERS, thread_name_prefix='call')
        # who is quiet, and the call that is to show whether it still is
        self._probes: dict[str, Future | None] = {}

    def each(self, servers: list[str], act: Callable[[Client], Any]) -> dict[str, Any]:
        """Return what `act` returned or raised, Refused or Unreachable, for each server."""
        futures = {name: self.later(name, act) for name in servers if not self.is_quiet(name)}
        outcomes = {name: Unreachable(QUIET) for name in servers}
        for name, future in futures.items():
            outcomes[name] = _outcome(future)
            if isinstance(outcomes[name], Unreachable):
                self._probes[name] = None
        return outcomes

    def later(self, server: str, act: Callable[[Client], Any]) -> Future:
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
    except (Refused, Unreachable) as error:
        return error


def open_in(
    slot: Slot,
    ask: SessionAsk,
    callers: Callers,
    *,
    wanted: int,
    besides: tuple[str, ...] = (),
    timeout_s: float,
) -> Opened:
    """
    Open the session on `wanted` replicas of a slot, or on as many as there are.

    Raises Refused when the robot does not fit; then what was opened is closed again.
    """
    if slot.misfit:
        return Opened(refused=Refused(Refusal.NOT_READY, f'slot {slot.name}: {slot.misfit}'))
    opened: dict[str, Any] = {}
    asked = set(besides)
    failure: Refused | None = None
    while len(opened) < wanted and (replicas := choose(slot, asked, wanted - len(opened))):
        asked |= {replica.name for replica in replicas}
        names = [replica.name for replica in replicas]
        outcomes = callers.each(names, lambda client: _open(client, ask, timeout_s))
        # all that were opened first: where one refuses, they are closed again
        opened |= {n: o for n, o in outcomes.items() if not isinstance(o, Exception)}
        for name in [name for name in names if name not in opened]:
            failure = _as_refused(slot, name, outcomes[name])
            if failure.code not in NOT_NOW:
                close_in(list(opened), ask, callers, timeout_s)
                raise failure
    if opened:
        return Opened(tuple(opened), next(iter(opened.values())))
    text = slot.text or 'every replica already has this session'
    code = Refusal.UNREACHABLE if not slot.can_answer else Refusal.NOT_READY
    return Opened(refused=failure or Refused(code, f'slot {slot.name}: {text}'))


def choose(slot: Slot, besides: set[str], count: int) -> list[Replica]:
    """Return the least loaded replicas that are ready."""
    chosen: list[Replica] = []
    while len(chosen) < count:
        replica = slot.choose(besides | {each.name for each in chosen})
        if replica is None:
            break
        chosen.append(replica)
    return chosen


def _open(client: Client, ask: SessionAsk, timeout_s: float) -> Any:
    reply = open_at(client, ask, timeout_s)
    # a service answers before its topics are found; what is sent by then is lost
    if not client.is_wired(timeout_s):
        client.close(ask, timeout_s)
        raise Unreachable(f'its topics were not found within {timeout_s:g} s')
    return reply


def open_at(client: Client, ask: SessionAsk, timeout_s: float) -> Any:
    """
    Return the reply of a session that is open there, now or already. Raises Refused and
    Unreachable.
    """
    return client.open(replace(ask, reply_topic=client.topic), timeout_s)


def _as_refused(slot: Slot, server: str, error: Exception) -> Refused:
    code = error.code if isinstance(error, Refused) else Refusal.UNREACHABLE
    return Refused(code, f'slot {slot.name} ({server}): {error}')


def close_in(servers: list[str], ask: SessionAsk, callers: Callers, timeout_s: float) -> list[str]:
    """End the session there; return who could not be told."""
    outcomes = callers.each(servers, lambda client: client.close(ask, timeout_s))
    return [name for name, outcome in outcomes.items() if isinstance(outcome, Exception)]
