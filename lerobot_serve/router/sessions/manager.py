# SPDX-License-Identifier: Apache-2.0
"""
Open, maintain and close the sessions of clients at the replicas. The thread `control`.

Sessions and replicas are written under RoutingTable.lock; replicas are called without the lock.
"""

from __future__ import annotations

from lerobot_serve.contract.records import (
    GetStatusResponse,
    OpenSessionRequest,
    ResetEpisodeRequest,
)
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.data_path.request_observer import report_dropped, RequestObserver
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.replicas.replica import Replica, ReplicaState
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.sessions.call_pool import ReplicaCallPool
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.sessions.compatibility_check import CompatibilityCheck
from lerobot_serve.router.sessions.opening import (
    close_at_replicas,
    open_at_replica,
    open_in_slot,
    SlotOpening,
)

CALL_TIMEOUT_S = 1.0
# below session_idle_s of a policy server, after which it closes an unused session
KEEP_ALIVE_NS = 15_000_000_000
# limit of sessions maintained in one round; the others follow in the next
SESSIONS_PER_ROUND = 16
# below the time that an operator's verb waits for a reply
FILL_LIMIT_NS = 2_000_000_000
# of a server that has lost its sessions
LOST_STATES = (ReplicaState.UNAVAILABLE, ReplicaState.POLICY_MISMATCH)


class SessionManager:
    """See the module."""

    def __init__(
        self,
        table: RoutingTable,
        calls: ReplicaCallPool,
        drops: DropCounters,
        observer: RequestObserver,
        context: NodeContext,
    ) -> None:
        self._table, self._call_pool, self._drops = table, calls, drops
        self._observer, self._context = observer, context
        self._replicas_per_slot = 1 + table.rules.standby_replicas
        self._timeout_s = table.rules.open_session_timeout_s
        self._compatibility = CompatibilityCheck(table, calls, context.log_warning)

    @property
    def status_replies(self) -> list[GetStatusResponse]:
        """The GetStatus replies of the slots. Any thread."""
        return [reply for _, reply in tuple(self._compatibility.known.values())]

    # sessions

    def open(self, session_request: OpenSessionRequest) -> dict[str, SlotOpening]:
        """Open a session in every available slot; return the results. Raises SessionRefused."""
        sessions, slots = self._table.sessions, self._table.slots
        sessions.check_client_id(session_request, self._context.clock())
        opened: dict[str, SlotOpening] = {}
        try:
            for name, slot in slots.items():
                opened[name] = self._open_in(slot, session_request)
            if not any(each.places for each in opened.values()):
                raise _no_slot_opened(opened)
        except SessionRefused:
            for each in opened.values():
                close_at_replicas(
                    list(each.places), session_request, self._call_pool, CALL_TIMEOUT_S
                )
            raise
        self._register(
            session_request,
            {name: each.places for name, each in opened.items() if each.places},
            {each.reply.policy for each in opened.values() if each.reply},
        )
        return opened

    def _register(
        self,
        session_request: OpenSessionRequest,
        places: dict[str, tuple[str, ...]],
        policies: set[str],
    ) -> None:
        """Register an open session, which replaces the previous one of the client."""
        now_ns, sessions = self._context.clock(), self._table.sessions
        session, left = ClientSession(session_request, places, now_ns, now_ns), None
        session.known_policies = policies
        with self._table.lock:
            self._adjust_counts(places, 1)
            old = sessions.current(session_request.client_id)
            held = session_servers(old) if old else []
            if old and old.request == session_request:
                # opened twice: the requests in flight stay valid
                self._adjust_counts(old.places, -1)
                old.places, old.last_heard_ns, old.unsubscribed_since_ns = places, now_ns, now_ns
                old.known_policies = policies
            else:
                sessions.add(session)
                if old:
                    session.resume(old)
                    left = self._forget_requests(old)
        self._drop_request(left, 'session_over')
        if old:
            self._close_at([name for name in held if name not in session_servers(session)], old)

    def _drop_request(self, request: InFlightRequest | None, reason: str) -> None:
        """Report a dropped request; None is ignored."""
        if request:
            report_dropped(request, reason, self._drops, self._observer)

    def _forget_requests(self, session: ClientSession) -> InFlightRequest | None:
        """Remove the requests of a session; return the one in flight, if any. Under the lock."""
        self._adjust_counts(session.places, -1)
        return self._table.in_flight.forget(session.request.client_id)

    def _open_in(
        self, slot: Slot, session_request: OpenSessionRequest, exclude: tuple[str, ...] = ()
    ) -> SlotOpening:
        opened = open_in_slot(
            slot,
            session_request,
            self._call_pool,
            wanted=self._replicas_per_slot - len(exclude),
            exclude=exclude,
            timeout_s=self._timeout_s,
        )
        if opened.refused and opened.refused.code == Refusal.UNREACHABLE:
            self._drops.add('open_unreachable')
        return opened

    def _adjust_counts(self, places: dict[str, tuple[str, ...]], by: int) -> None:
        for name, servers in places.items():
            replicas = self._table.slots[name].replicas
            for server in servers:
                replicas[server].sessions += by
            if servers:
                replicas[servers[0]].preferring_sessions += by

    def close(self, client_id: str, session_epoch: int) -> ClientSession | None:
        """Close a session at all replicas and return it; None without such a session."""
        with self._table.lock:
            session = self._table.sessions.close(client_id, session_epoch)
            if session is None:
                return None
            left = self._forget_requests(session)
            self._table.stats.end_episode(client_id, self._context.clock())
        self._drop_request(left, 'session_over')
        self._close_at(session_servers(session), session)
        return session

    def _close_at(self, servers: list[str], session: ClientSession) -> None:
        for _ in close_at_replicas(servers, session.request, self._call_pool, CALL_TIMEOUT_S):
            self._drops.add('close_unreachable')

    def reset(self, request: ResetEpisodeRequest) -> list[str]:
        """Reset the episode at all replicas of a session; return their errors."""
        session = self._table.sessions.find(request.client_id, request.session_epoch)
        if session is None:
            epoch = request.session_epoch
            return [f'{request.client_id!r} has no session of epoch {epoch} with this router']
        with self._table.lock:
            in_flight = self._table.in_flight
            left = in_flight.forget_episodes_before(request.client_id, request.episode)
        self._drop_request(left, 'episode_over')
        servers = session_servers(session)
        outcomes = self._call_pool.each(servers, lambda c: c.reset(request, CALL_TIMEOUT_S))
        texts = []
        for server, outcome in outcomes.items():
            if isinstance(outcome, Exception):
                texts.append(f'{server}: {outcome}')
            elif not outcome.acknowledged:
                texts.append(f'{server}: {outcome.text}')
        return texts

    def reopen_session(self, session: ClientSession, server: str) -> None:
        """Reopen a session that a replica has lost, if it is still current."""
        is_current = self._table.sessions.current(session.request.client_id) is session
        if not is_current or server not in session_servers(session):
            return
        self._reopen(session, server)

    def _reopen(self, session: ClientSession, server: str) -> None:
        session_request = session.request
        outcomes = self._call_pool.each(
            [server], lambda c: open_at_replica(c, session_request, CALL_TIMEOUT_S)
        )
        outcome = outcomes[server]
        if not isinstance(outcome, Exception):
            return
        self._drops.add('reopen_failed')
        if is_superseded(outcome):
            self._end_superseded(session)
        # an unreachable replica without a replacement may still hold the session
        elif isinstance(outcome, SessionRefused) or self._has_replacement(session, server):
            self._remove_place(session, server)

    def _end_superseded(self, session: ClientSession) -> None:
        """End a session whose client asks another router now, or another robot has its name."""
        request = session.request
        if self.close(request.client_id, request.session_epoch):
            self._context.log_info(f'{request.client_id!r} has a newer session elsewhere')

    def _has_replacement(self, session: ClientSession, server: str) -> bool:
        """Return whether another ready replica of the slot could hold the session."""
        slot = self._table.slots[self._table.replicas[server].slot]
        other = slot.choose({*session_servers(session), *self._call_pool.unresponsive})
        return other is not None and other.is_ready

    def _remove_place(self, session: ClientSession, server: str) -> None:
        """Remove a replica from the places of a session."""
        with self._table.lock:
            self._forget_place(session, server)

    def on_sessions_lost(self, server: str) -> None:
        """
        Remove a replica from the places of all sessions, before it is ready again: a request to a
        server that has closed its session is lost. Under the lock; the executor thread.
        """
        for session in self._table.sessions:
            self._forget_place(session, server)

    def _forget_place(self, session: ClientSession, server: str) -> None:
        for name, servers in session.places.items():
            if server in servers:
                self._adjust_counts({name: servers}, -1)
                left = tuple(each for each in servers if each != server)
                session.places = {**session.places, name: left}
                self._adjust_counts({name: left}, 1)

    # rounds, once a second

    def maintain_sessions(self) -> None:
        """Open missing sessions and keep unused ones alive."""
        now_ns, sessions = self._context.clock(), self._table.sessions
        for session in sessions:
            for server in session_servers(session):
                if self._table.replicas[server].state in LOST_STATES:
                    self._remove_place(session, server)
        slots = self._table.slots.values()
        missing = [(r, s) for r in sessions for s in slots if self._needs_session(r, s)]
        for session, slot in missing[:SESSIONS_PER_ROUND]:
            self._open_missing(session, slot)
        unused = [(r, s) for r in sessions for s in self._idle_servers(r, now_ns)]
        for session, server in unused[:SESSIONS_PER_ROUND]:
            session.last_used_ns[server] = now_ns
            self._reopen(session, server)

    def fill(self, slot_name: str) -> None:
        """
        Open the sessions that a slot lacks, before it gets a share of the episodes: rounds are too
        slow for servers that have just loaded another policy. Ends after FILL_LIMIT_NS.
        """
        slot = self._table.slots.get(slot_name)
        if slot is None:
            return
        end_ns = self._context.clock() + FILL_LIMIT_NS
        for session in self._table.sessions:
            if self._context.clock() > end_ns:
                return
            if not session.places.get(slot_name) and self._needs_session(session, slot):
                self._open_missing(session, slot)

    def _needs_session(self, session: ClientSession, slot: Slot) -> bool:
        """Return whether another replica of a slot can and should hold the session."""
        have = session.places.get(slot.name, ())
        # a slot that refuses the session would use up the limit of the round
        if slot.incompatibility or session.refused.get(slot.name) == slot.policy:
            return False
        return len(have) < self._replicas_per_slot and bool(
            slot.choose({*have, *self._call_pool.unresponsive})
        )

    def _open_missing(self, session: ClientSession, slot: Slot) -> None:
        have = session.places.get(slot.name, ())
        losses = {replica.name: replica.session_losses for replica in slot}
        try:
            opened = self._open_in(slot, session.request, exclude=have)
        except SessionRefused as refused:
            if is_superseded(refused):
                self._end_superseded(session)
                return
            self._drops.add('slot_refused')
            self._context.log_warning(
                f'slot {slot.name} refused the session of {session.request.client_id!r}: {refused}'
            )
            session.refused[slot.name] = slot.policy
            return
        with self._table.lock:
            # the dispatcher may have changed the preferred replica meanwhile
            have = session.places.get(slot.name, ())
            held = tuple(
                name
                for name in opened.places
                if slot.replicas[name].session_losses == losses[name]
            )
            self._adjust_counts({slot.name: have}, -1)
            session.places = {**session.places, slot.name: (*have, *held)}
            self._adjust_counts({slot.name: session.places[slot.name]}, 1)

    def _idle_servers(self, session: ClientSession, now_ns: int) -> list[str]:
        used = session.last_used_ns
        return [
            server
            for server in session_servers(session)
            if now_ns - used.setdefault(server, now_ns) > KEEP_ALIVE_NS
        ]

    def check_replicas(self) -> None:
        """Update the policy signatures, and probe unhealthy replicas without sessions."""
        now_ns = self._context.clock()
        self._call_pool.probe(self._timeout_s)
        for slot in self._table.slots.values():
            for replica in slot:
                is_alone = replica.state is ReplicaState.UNHEALTHY and not replica.sessions
                if is_alone and replica.health.is_probe_due(now_ns):
                    self._probe_replica(replica, now_ns)
        self._compatibility.update(CALL_TIMEOUT_S)

    def _probe_replica(self, replica: Replica, now_ns: int) -> None:
        """Probe a replica with a status call; mark it healthy when the call succeeds."""
        outcome = self._call_pool.each([replica.name], lambda c: c.status(CALL_TIMEOUT_S))
        with self._table.lock:
            if isinstance(outcome[replica.name], Exception):
                replica.health.probe_failed(now_ns)
                return
            replica.health.mark_healthy()
        self._context.log_warning(f'{replica.name}: healthy again (status call succeeded)')


def is_superseded(error: Exception) -> bool:
    """Return whether a server holds a newer session of the client, or one of another robot."""
    return isinstance(error, SessionRefused) and error.code is Refusal.NAME_IN_USE


def session_servers(session: ClientSession) -> list[str]:
    """Return all servers that hold a session."""
    return [server for servers in session.places.values() for server in servers]


def _no_slot_opened(opened: dict[str, SlotOpening]) -> SessionRefused:
    refusals = [each.refused for each in opened.values() if each.refused]
    return SessionRefused(refusals[0].code, '; '.join(str(refused) for refused in refusals))
