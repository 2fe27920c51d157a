"""
Sessions of robots: opened, kept, moved to who is there, and closed. The control thread.

What it decides about robots and replicas it writes under the dispatcher's lock; it never calls
anybody while it holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lerobot_serve.router.contracts import Contracts
from lerobot_serve.router.dispatch import Dispatcher
from lerobot_serve.router.drops import Drops
from lerobot_serve.router.flights import Flight
from lerobot_serve.router.opening import Callers, close_in, open_at, open_in, Opened
from lerobot_serve.router.replicas import Replica, Standing
from lerobot_serve.router.robots import Robot
from lerobot_serve.router.slots import Slot
from lerobot_serve.router.tally import Tally
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import Refused, SessionAsk, Unreachable

CALL_TIMEOUT_S = 1.0
# a server closes a session that was not used for its session_idle_s, a minute by default
KEEP_ALIVE_NS = 15_000_000_000
# robots that are seen to in one round; the others in the next
ROUND = 16


class Control:
    """See the module. `standby` is how many replicas more than one keep each session ready."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        callers: Callers,
        tally: Tally,
        drops: Drops,
        *,
        standby: int,
        open_timeout_s: float,
        clock: Callable[[], int],
        tell: Callable[[str], None],
    ) -> None:
        self._dispatcher, self._callers = dispatcher, callers
        self._tally, self._drops = tally, drops
        self._wanted = 1 + standby
        self._timeout_s = open_timeout_s
        self._clock, self._tell = clock, tell
        self._contracts = Contracts(dispatcher, callers, tell)
        self.contracts = self._contracts.known

    # robots

    def open(self, ask: SessionAsk) -> dict[str, Opened]:
        """Open the session in every slot that is there. Raises Refused."""
        robots, slots = self._dispatcher.robots, self._dispatcher.slots
        robots.check_name(ask, self._clock())
        opened: dict[str, Opened] = {}
        try:
            for name, slot in slots.items():
                opened[name] = self._open_in(slot, ask)
            if not any(each.places for each in opened.values()):
                raise _nowhere(opened)
        except Refused:
            for each in opened.values():
                close_in(list(each.places), ask, self._callers, CALL_TIMEOUT_S)
            raise
        self._take_in(ask, {name: each.places for name, each in opened.items() if each.places})
        return opened

    def _take_in(self, ask: SessionAsk, places: dict[str, tuple[str, ...]]) -> None:
        """A session is open at these places; it takes the place of the one before."""
        now_ns, robots = self._clock(), self._dispatcher.robots
        robot, left = Robot(ask, places, now_ns, now_ns), None
        with self._dispatcher.lock:
            self._count(places, 1)
            old = robots.current(ask.client_id)
            held = servers_of(old) if old else []
            if old and old.ask == ask:
                # asked for twice: what is under way for it goes on
                self._count(old.places, -1)
                old.places, old.heard_ns, old.deaf_since_ns = places, now_ns, now_ns
            else:
                robots.add(robot)
                if old:
                    robot.resume(old)
                    left = self._let_go(old)
        self._dispatcher.leave_unanswered(left, 'session_over')
        if old:
            self._close_at([name for name in held if name not in servers_of(robot)], old)

    def _let_go(self, robot: Robot) -> Flight | None:
        """Expect nothing for a robot's session any more; return what was. Under the lock."""
        self._count(robot.places, -1)
        return self._dispatcher.flights.forget(robot.ask.client_id)

    def _open_in(self, slot: Slot, ask: SessionAsk, besides: tuple[str, ...] = ()) -> Opened:
        opened = open_in(
            slot,
            ask,
            self._callers,
            wanted=self._wanted - len(besides),
            besides=besides,
            timeout_s=self._timeout_s,
        )
        if opened.refused and opened.refused.code == Refusal.UNREACHABLE:
            self._drops.add('open_unreachable')
        return opened

    def _count(self, places: dict[str, tuple[str, ...]], by: int) -> None:
        for name, servers in places.items():
            replicas = self._dispatcher.slots[name].replicas
            for server in servers:
                replicas[server].sessions += by
            if servers:
                replicas[servers[0]].robots += by

    def close(self, client_id: str, session_epoch: int) -> Robot | None:
        """End a robot's session everywhere; return None when there is no such session."""
        with self._dispatcher.lock:
            robot = self._dispatcher.robots.close(client_id, session_epoch)
            if robot is None:
                return None
            left = self._let_go(robot)
            self._tally.ended(client_id, self._clock())
        self._dispatcher.leave_unanswered(left, 'session_over')
        self._close_at(servers_of(robot), robot)
        return robot

    def _close_at(self, servers: list[str], robot: Robot) -> None:
        for _ in close_in(servers, robot.ask, self._callers, CALL_TIMEOUT_S):
            self._drops.add('close_unreachable')

    def reset(self, request: Any) -> list[str]:
        """Tell all who have the session that an episode begins; return what went wrong."""
        robot = self._dispatcher.robots.find(request.client_id, request.session_epoch)
        if robot is None:
            epoch = request.session_epoch
            return [f'{request.client_id!r} has no session of epoch {epoch} with this router']
        with self._dispatcher.lock:
            flights = self._dispatcher.flights
            left = flights.forget_episodes_before(request.client_id, request.episode)
        self._dispatcher.leave_unanswered(left, 'episode_over')
        servers = servers_of(robot)
        outcomes = self._callers.each(servers, lambda c: c.reset(request, CALL_TIMEOUT_S))
        texts = []
        for server, outcome in outcomes.items():
            if isinstance(outcome, Unreachable):
                texts.append(f'{server}: {outcome}')
            elif not outcome.acknowledged:
                texts.append(f'{server}: {outcome.text}')
        return texts

    def reopen(self, robot: Robot, server: str) -> None:
        """A replica has lost a robot's session: give it another one."""
        is_current = self._dispatcher.robots.current(robot.ask.client_id) is robot
        if not is_current or server not in servers_of(robot):
            return
        self._reopen(robot, server)

    def _reopen(self, robot: Robot, server: str) -> None:
        ask = robot.ask
        outcomes = self._callers.each([server], lambda c: open_at(c, ask, CALL_TIMEOUT_S))
        if not isinstance(outcomes[server], Exception):
            return
        self._drops.add('reopen_failed')
        # one that does not answer may have the session still
        if isinstance(outcomes[server], Refused) or self._has_better(robot, server):
            self._leave(robot, server)

    def _has_better(self, robot: Robot, server: str) -> bool:
        """Return whether another replica, that is well, could have the session instead."""
        slot = self._dispatcher.slots[self._replica_of(server).slot]
        other = slot.choose({*servers_of(robot), *self._callers.quiet})
        return other is not None and other.is_ready

    def _leave(self, robot: Robot, server: str) -> None:
        """A robot's session is not at that replica any more."""
        with self._dispatcher.lock:
            for name, servers in robot.places.items():
                if server in servers:
                    self._count({name: servers}, -1)
                    left = tuple(each for each in servers if each != server)
                    robot.places = {**robot.places, name: left}
                    self._count({name: left}, 1)

    # rounds, once a second

    def look_after_robots(self) -> None:
        """Fill the places that are missing, and keep alive the sessions that are not used."""
        now_ns = self._clock()
        for robot in self._dispatcher.robots:
            for server in self._gone(robot):
                self._leave(robot, server)
        missing = [(r, s) for r in self._dispatcher.robots for s in self._missing(r)]
        for robot, slot in missing[:ROUND]:
            self._fill(robot, slot)
        unused = [(r, s) for r in self._dispatcher.robots for s in self._unused(r, now_ns)]
        for robot, server in unused[:ROUND]:
            robot.used_ns[server] = now_ns
            self._reopen(robot, server)

    def _replica_of(self, server: str) -> Replica:
        slots = self._dispatcher.slots.values()
        return next(slot.replicas[server] for slot in slots if server in slot.replicas)

    def _gone(self, robot: Robot) -> list[str]:
        """Return where its session cannot be any more."""
        lost = (Standing.AWAY, Standing.STRANGER)
        return [name for name in servers_of(robot) if self._replica_of(name).standing in lost]

    def _missing(self, robot: Robot) -> list[Slot]:
        """Return the slots in which it needs one more session and can have it."""
        return [slot for slot in self._dispatcher.slots.values() if self._is_short(robot, slot)]

    def _is_short(self, robot: Robot, slot: Slot) -> bool:
        have = robot.places.get(slot.name, ())
        # what cannot be had would take the place of others in the round
        if slot.misfit or robot.refused.get(slot.name) == slot.policy:
            return False
        return len(have) < self._wanted and bool(slot.choose({*have, *self._callers.quiet}))

    def _fill(self, robot: Robot, slot: Slot) -> None:
        have = robot.places.get(slot.name, ())
        try:
            opened = self._open_in(slot, robot.ask, besides=have)
        except Refused as refused:
            self._drops.add('slot_refused')
            self._tell(f'{robot.ask.client_id!r} gets no episodes of slot {slot.name}: {refused}')
            robot.refused[slot.name] = slot.policy
            return
        with self._dispatcher.lock:
            # the dispatcher may have put another one first meanwhile
            have = robot.places.get(slot.name, ())
            self._count({slot.name: have}, -1)
            robot.places = {**robot.places, slot.name: (*have, *opened.places)}
            self._count({slot.name: robot.places[slot.name]}, 1)

    def _unused(self, robot: Robot, now_ns: int) -> list[str]:
        used = robot.used_ns
        return [
            server
            for server in servers_of(robot)
            if now_ns - used.setdefault(server, now_ns) > KEEP_ALIVE_NS
        ]

    def look_at_replicas(self) -> None:
        """Learn what the slots' policies ask of robots, and try who has nobody to try it with."""
        now_ns = self._clock()
        self._callers.probe(self._timeout_s)
        for slot in self._dispatcher.slots.values():
            for replica in slot:
                is_alone = replica.standing is Standing.SUSPECT and not replica.sessions
                if is_alone and replica.health.wants_trial(now_ns):
                    self._try(replica, now_ns)
        self._contracts.look(CALL_TIMEOUT_S)

    def _try(self, replica: Replica, now_ns: int) -> None:
        """Who answers a call may have sessions again; what robots ask shows the rest."""
        outcome = self._callers.each([replica.name], lambda c: c.status(CALL_TIMEOUT_S))
        with self._dispatcher.lock:
            if isinstance(outcome[replica.name], Exception):
                replica.health.trial_failed(now_ns)
                return
            replica.health.restore()
        self._tell(f'{replica.name} answers again')


def servers_of(robot: Robot) -> list[str]:
    """Return who has its session."""
    return [server for servers in robot.places.values() for server in servers]


def _nowhere(opened: dict[str, Opened]) -> Refused:
    refusals = [each.refused for each in opened.values() if each.refused]
    return Refused(refusals[0].code, '; '.join(str(refused) for refused in refusals))
