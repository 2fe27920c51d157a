# SPDX-License-Identifier: Apache-2.0
"""
Open the session of a client at replicas of every slot. The thread `control`.

In each slot the least loaded replicas hold the session: the preferred one and the standby
replicas. A client that is incompatible with a slot is refused. An unavailable slot is skipped and
receives the session later (manager.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.records import OpenSessionRequest, OpenSessionResponse
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.sessions.call_pool import ReplicaCallPool

# temporary refusals; any other is final
RETRYABLE_REFUSALS = {
    Refusal.UNREACHABLE,
    Refusal.NOT_READY,
    Refusal.DRAINING,
    Refusal.CAPACITY,
    Refusal.EXCLUSIVE_IN_USE,
}


@dataclass(frozen=True, slots=True)
class SlotOpening:
    """The result in one slot: replicas that hold the session with a reply, or a refusal."""

    places: tuple[str, ...] = ()
    reply: OpenSessionResponse | None = None
    refused: SessionRefused | None = None


def open_in_slot(
    slot: Slot,
    session_request: OpenSessionRequest,
    callers: ReplicaCallPool,
    *,
    wanted: int,
    exclude: tuple[str, ...] = (),
    timeout_s: float,
) -> SlotOpening:
    """
    Open the session at `wanted` replicas of a slot, or at all that are available.

    Raises SessionRefused for an incompatible client, after closing the sessions opened so far.
    """
    if slot.incompatibility:
        return SlotOpening(
            refused=SessionRefused(Refusal.NOT_READY, f'slot {slot.name}: {slot.incompatibility}')
        )
    opened: dict[str, OpenSessionResponse] = {}
    tried = set(exclude)
    failure: SessionRefused | None = None
    while len(opened) < wanted and (
        replicas := choose_replicas(slot, tried, wanted - len(opened))
    ):
        tried |= {replica.name for replica in replicas}
        names = [replica.name for replica in replicas]
        outcomes = callers.each(names, lambda client: _open(client, session_request, timeout_s))
        # all opened sessions first: a final refusal closes them again
        opened |= {n: o for n, o in outcomes.items() if not isinstance(o, Exception)}
        failed = {n: o for n, o in outcomes.items() if isinstance(o, Exception)}
        for name, error in failed.items():
            failure = _as_refused(slot, name, error)
            if failure.code not in RETRYABLE_REFUSALS:
                close_at_replicas(list(opened), session_request, callers, timeout_s)
                raise failure
    if opened:
        return SlotOpening(tuple(opened), next(iter(opened.values())))
    text = slot.text or 'every replica already has this session'
    code = Refusal.UNREACHABLE if not slot.has_ready_replica else Refusal.NOT_READY
    return SlotOpening(refused=failure or SessionRefused(code, f'slot {slot.name}: {text}'))


def choose_replicas(slot: Slot, exclude: set[str], count: int) -> list[Replica]:
    """Return up to `count` of the least loaded reachable replicas."""
    chosen: list[Replica] = []
    while len(chosen) < count:
        replica = slot.choose(exclude | {each.name for each in chosen})
        if replica is None:
            break
        chosen.append(replica)
    return chosen


def _open(
    client: ServerClient, session_request: OpenSessionRequest, timeout_s: float
) -> OpenSessionResponse:
    reply = open_at_replica(client, session_request, timeout_s)
    # requests are lost until the topics are matched, which may follow the service reply
    if not client.wait_until_matched(timeout_s):
        client.close(session_request, timeout_s)
        raise ServerUnreachable(f'its topics were not found within {timeout_s:g} s')
    return reply


def open_at_replica(
    client: ServerClient, session_request: OpenSessionRequest, timeout_s: float
) -> OpenSessionResponse:
    """
    Open the session at a replica, or confirm it; return the reply. Raises SessionRefused and
    ServerUnreachable.
    """
    return client.open(client.session_request_for(session_request), timeout_s)


def _as_refused(slot: Slot, server: str, error: Exception) -> SessionRefused:
    code = error.code if isinstance(error, SessionRefused) else Refusal.UNREACHABLE
    return SessionRefused(code, f'slot {slot.name} ({server}): {error}')


def close_at_replicas(
    servers: list[str],
    session_request: OpenSessionRequest,
    callers: ReplicaCallPool,
    timeout_s: float,
) -> list[str]:
    """Close the session at the servers; return those that could not be reached."""
    outcomes = callers.each(servers, lambda client: client.close(session_request, timeout_s))
    return [name for name, outcome in outcomes.items() if isinstance(outcome, Exception)]
