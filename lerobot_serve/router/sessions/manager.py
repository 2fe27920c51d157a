# SPDX-License-Identifier: Apache-2.0
"""
Open, maintain, move and close the sessions of clients. The thread `control`.

It writes sessions and replicas under the dispatcher's lock and never calls a replica while holding
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lerobot_serve.router.data_path.dispatcher import Dispatcher
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.replicas.replica import Replica, ReplicaState
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import SlotStats
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.sessions.compatibility_check import CompatibilityCheck
from lerobot_serve.router.sessions.opening import (
    close_at_replicas,
    open_at_replica,
    open_in_slot,
    ReplicaCallPool,
    SlotOpening,
)
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import ServerUnreachable, SessionRefused, SessionRequest

CALL_TIMEOUT_S = 1.0
# a server closes a session that was not used for its session_idle_s, a minute by default
KEEP_ALIVE_NS = 15_000_000_000
# sessions that are maintained in one round; the others in the next
SESSIONS_PER_ROUND = 16


class SessionManager:
    """See the module. `standby` further replicas of a slot hold each session ready."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        callers: ReplicaCallPool,
        stats: SlotStats,
        drops: DropCounters,
        *,
        standby: int,
        open_session_timeout_s: float,
        clock: Callable[[], int],
        warn: Callable[[str], None],
    ) -> None:
        self._dispatcher, self._call_pool = dispatcher, callers
        self._stats, self._drops = stats, drops
        self._wanted = 1 + standby
        self._timeout_s = open_session_timeout_s
        self._clock, self._warn = clock, warn
        self._contracts = CompatibilityCheck(dispatcher, callers, warn)
        self.contracts = self._contracts.known

    # robots

    def open(self, ask: SessionRequest) -> dict[str, SlotOpening]:
        """Open the session in every available slot. Raises SessionRefused."""
        robots, slots = self._dispatcher.robots, self._dispatcher.slots
        robots.check_client_id(ask, self._clock())
        opened: dict[str, SlotOpening] = {}
        try:
            for name, slot in slots.items():
                opened[name] = self._open_in(slot, ask)
            if not any(each.places for each in opened.values()):
                raise _nowhere(opened)
        except SessionRefused:
            for each in opened.values():
                close_at_replicas(list(each.places), ask, self._call_pool, CALL_TIMEOUT_S)
            raise
        self._register(ask, {name: each.places for name, each in opened.items() if each.places})
        return opened

    def _register(self, ask: SessionRequest, places: dict[str, tuple[str, ...]]) -> None:
        """Register an open session; it replaces the previous one of the client."""
        now_ns, robots = self._clock(), self._dispatcher.robots
        robot, left = ClientSession(ask, places, now_ns, now_ns), None
        with self._dispatcher.lock:
            self._adjust_counts(places, 1)
            old = robots.current(ask.client_id)
            held = session_servers(old) if old else []
            if old and old.ask == ask:
                # opened twice: its requests in flight go on
                self._adjust_counts(old.places, -1)
                old.places, old.heard_ns, old.deaf_since_ns = places, now_ns, now_ns
            else:
                robots.add(robot)
                if old:
                    robot.resume(old)
                    left = self._forget_requests(old)
        self._dispatcher.record_unanswered(left, 'session_over')
        if old:
            self._close_at([name for name in held if name not in session_servers(robot)], old)

    def _forget_requests(self, robot: ClientSession) -> InFlightRequest | None:
        """Forget the requests of a session; return the one in flight. Under the lock."""
        self._adjust_counts(robot.places, -1)
        return self._dispatcher.in_flight.forget(robot.ask.client_id)

    def _open_in(
        self, slot: Slot, ask: SessionRequest, besides: tuple[str, ...] = ()
    ) -> SlotOpening:
        opened = open_in_slot(
            slot,
            ask,
            self._call_pool,
            wanted=self._wanted - len(besides),
            besides=besides,
            timeout_s=self._timeout_s,
        )
        if opened.refused and opened.refused.code == Refusal.UNREACHABLE:
            self._drops.add('open_unreachable')
        return opened

    def _adjust_counts(self, places: dict[str, tuple[str, ...]], by: int) -> None:
        for name, servers in places.items():
            replicas = self._dispatcher.slots[name].replicas
            for server in servers:
                replicas[server].sessions += by
            if servers:
                replicas[servers[0]].robots += by

    def close(self, client_id: str, session_epoch: int) -> ClientSession | None:
        """Close a session at all replicas; return None when there is no such session."""
        with self._dispatcher.lock:
            robot = self._dispatcher.robots.close(client_id, session_epoch)
            if robot is None:
                return None
            left = self._forget_requests(robot)
            self._stats.end_episode(client_id, self._clock())
        self._dispatcher.record_unanswered(left, 'session_over')
        self._close_at(session_servers(robot), robot)
        return robot

    def _close_at(self, servers: list[str], robot: ClientSession) -> None:
        for _ in close_at_replicas(servers, robot.ask, self._call_pool, CALL_TIMEOUT_S):
            self._drops.add('close_unreachable')

    def reset(self, request: Any) -> list[str]:
        """Reset the episode at all replicas of a session; return the errors."""
        robot = self._dispatcher.robots.find(request.client_id, request.session_epoch)
        if robot is None:
            epoch = request.session_epoch
            return [f'{request.client_id!r} has no session of epoch {epoch} with this router']
        with self._dispatcher.lock:
            flights = self._dispatcher.in_flight
            left = flights.forget_episodes_before(request.client_id, request.episode)
        self._dispatcher.record_unanswered(left, 'episode_over')
        servers = session_servers(robot)
        outcomes = self._call_pool.each(servers, lambda c: c.reset(request, CALL_TIMEOUT_S))
        texts = []
        for server, outcome in outcomes.items():
            if isinstance(outcome, ServerUnreachable):
                texts.append(f'{server}: {outcome}')
            elif not outcome.acknowledged:
                texts.append(f'{server}: {outcome.text}')
        return texts

    def reopen_session(self, robot: ClientSession, server: str) -> None:
        """Reopen a session that a replica has lost."""
        is_current = self._dispatcher.robots.current(robot.ask.client_id) is robot
        if not is_current or server not in session_servers(robot):
            return
        self._reopen(robot, server)

    def _reopen(self, robot: ClientSession, server: str) -> None:
        ask = robot.ask
        outcomes = self._call_pool.each(
            [server], lambda c: open_at_replica(c, ask, CALL_TIMEOUT_S)
        )
        if not isinstance(outcomes[server], Exception):
            return
        self._drops.add('reopen_failed')
        # an unreachable replica may still hold the session
        if isinstance(outcomes[server], SessionRefused) or self._has_replacement(robot, server):
            self._remove_place(robot, server)

    def _has_replacement(self, robot: ClientSession, server: str) -> bool:
        """Return whether another ready replica could hold the session instead."""
        slot = self._dispatcher.slots[self._replica_of(server).slot]
        other = slot.choose({*session_servers(robot), *self._call_pool.unresponsive})
        return other is not None and other.is_ready

    def _remove_place(self, robot: ClientSession, server: str) -> None:
        """Remove a replica from the places of a session."""
        with self._dispatcher.lock:
            for name, servers in robot.places.items():
                if server in servers:
                    self._adjust_counts({name: servers}, -1)
                    left = tuple(each for each in servers if each != server)
                    robot.places = {**robot.places, name: left}
                    self._adjust_counts({name: left}, 1)

    # rounds, once a second

    def maintain_sessions(self) -> None:
        """Open missing sessions, and keep unused ones alive."""
        now_ns = self._clock()
        for robot in self._dispatcher.robots:
            for server in self._lost_servers(robot):
                self._remove_place(robot, server)
        missing = [(r, s) for r in self._dispatcher.robots for s in self._missing(r)]
        for robot, slot in missing[:SESSIONS_PER_ROUND]:
            self._fill(robot, slot)
        unused = [(r, s) for r in self._dispatcher.robots for s in self._idle_servers(r, now_ns)]
        for robot, server in unused[:SESSIONS_PER_ROUND]:
            robot.last_used_ns[server] = now_ns
            self._reopen(robot, server)

    def _replica_of(self, server: str) -> Replica:
        slots = self._dispatcher.slots.values()
        return next(slot.replicas[server] for slot in slots if server in slot.replicas)

    def _lost_servers(self, robot: ClientSession) -> list[str]:
        """Return the servers that have lost its session."""
        lost = (ReplicaState.UNAVAILABLE, ReplicaState.POLICY_MISMATCH)
        return [name for name in session_servers(robot) if self._replica_of(name).state in lost]

    def _missing(self, robot: ClientSession) -> list[Slot]:
        """Return the slots in which it needs, and can open, one more session."""
        return [
            slot for slot in self._dispatcher.slots.values() if self._needs_session(robot, slot)
        ]

    def _needs_session(self, robot: ClientSession, slot: Slot) -> bool:
        have = robot.places.get(slot.name, ())
        # a slot that refuses would use up the round of others
        if slot.misfit or robot.refused.get(slot.name) == slot.policy:
            return False
        return len(have) < self._wanted and bool(
            slot.choose({*have, *self._call_pool.unresponsive})
        )

    def _fill(self, robot: ClientSession, slot: Slot) -> None:
        have = robot.places.get(slot.name, ())
        try:
            opened = self._open_in(slot, robot.ask, besides=have)
        except SessionRefused as refused:
            self._drops.add('slot_refused')
            self._warn(
                f'slot {slot.name} refused the session of {robot.ask.client_id!r}: {refused}'
            )
            robot.refused[slot.name] = slot.policy
            return
        with self._dispatcher.lock:
            # the dispatcher may have changed the preferred replica meanwhile
            have = robot.places.get(slot.name, ())
            self._adjust_counts({slot.name: have}, -1)
            robot.places = {**robot.places, slot.name: (*have, *opened.places)}
            self._adjust_counts({slot.name: robot.places[slot.name]}, 1)

    def _idle_servers(self, robot: ClientSession, now_ns: int) -> list[str]:
        used = robot.last_used_ns
        return [
            server
            for server in session_servers(robot)
            if now_ns - used.setdefault(server, now_ns) > KEEP_ALIVE_NS
        ]

    def check_replicas(self) -> None:
        """Update the signatures of policies, and probe unhealthy replicas without sessions."""
        now_ns = self._clock()
        self._call_pool.probe(self._timeout_s)
        for slot in self._dispatcher.slots.values():
            for replica in slot:
                is_alone = replica.state is ReplicaState.UNHEALTHY and not replica.sessions
                if is_alone and replica.health.is_probe_due(now_ns):
                    self._probe_replica(replica, now_ns)
        self._contracts.update(CALL_TIMEOUT_S)

    def _probe_replica(self, replica: Replica, now_ns: int) -> None:
        """Probe with a status call; a replica that replies may hold sessions again."""
        outcome = self._call_pool.each([replica.name], lambda c: c.status(CALL_TIMEOUT_S))
        with self._dispatcher.lock:
            if isinstance(outcome[replica.name], Exception):
                replica.health.probe_failed(now_ns)
                return
            replica.health.mark_healthy()
        self._warn(f'{replica.name}: healthy again (status call succeeded)')


def session_servers(robot: ClientSession) -> list[str]:
    """Return the servers that hold the session."""
    return [server for servers in robot.places.values() for server in servers]


def _nowhere(opened: dict[str, SlotOpening]) -> SessionRefused:
    refusals = [each.refused for each in opened.values() if each.refused]
    return SessionRefused(refusals[0].code, '; '.join(str(refused) for refused in refusals))
