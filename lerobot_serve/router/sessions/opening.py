# SPDX-License-Identifier: Apache-2.0
"""
Open one session of the router as sessions with replicas of every slot. The thread `control`.

In each slot the least loaded replicas hold it: the preferred one and the standby replicas. A
client that is incompatible with a slot is refused; a slot that is not available is not used, and
gets the session when it is back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.sessions.call_pool import ReplicaCallPool, ReplicaClient
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import ServerUnreachable, SessionRefused, SessionRequest
from lerobot_serve_interfaces.srv import OpenSession

# refusals that may not repeat; any other is final
RETRYABLE_REFUSALS = {
    Refusal.UNREACHABLE,
    Refusal.NOT_READY,
    Refusal.DRAINING,
    Refusal.CAPACITY,
    Refusal.EXCLUSIVE_IN_USE,
}


@dataclass(frozen=True, slots=True)
class SlotOpening:
    """The result in one slot: the replicas that hold the session, a reply or a refusal."""

    places: tuple[str, ...] = ()
    reply: OpenSession.Response | None = None
    refused: SessionRefused | None = None


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
    opened: dict[str, OpenSession.Response] = {}
    tried = set(besides)
    failure: SessionRefused | None = None
    while len(opened) < wanted and (
        replicas := choose_replicas(slot, tried, wanted - len(opened))
    ):
        tried |= {replica.name for replica in replicas}
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


def _open(client: ReplicaClient, ask: SessionRequest, timeout_s: float) -> OpenSession.Response:
    reply = open_at_replica(client, ask, timeout_s)
    # a service replies before its topics are matched; requests sent by then are lost
    if not client.is_matched(timeout_s):
        client.close(ask, timeout_s)
        raise ServerUnreachable(f'its topics were not found within {timeout_s:g} s')
    return reply


def open_at_replica(
    client: ReplicaClient, ask: SessionRequest, timeout_s: float
) -> OpenSession.Response:
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
