# SPDX-License-Identifier: Apache-2.0
"""
A dispatcher with its slots, robots and clock, and what it did to the outside.

Two replicas in each slot unless a test says otherwise; every robot has a session with all. The
outside fails the test when it is called under the dispatcher's lock.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import execution_report as wire_executed
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.header import Header, read_envelope
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import OpenSessionRequest, ServerStatus
from lerobot_serve.contract.schema import Flag, MsgType, StateClass, Status
from lerobot_serve.router.data_path.dispatch_step import RequestTimer
from lerobot_serve.router.data_path.dispatcher import Dispatcher
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.placement_table import PlacementTable
from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.replicas.slot import Slot, SlotDrain
from lerobot_serve.router.sessions.client_sessions import ClientSession, ClientSessions
from support.contract.session_request import session_request
from support.replacing import replace
from support.router.recording_transport import RecordingTransport

MS, SECOND = 1_000_000, 1_000_000_000
TIMEOUT_NS = SECOND
SLOTS = {'a': ('/a1', '/a2'), 'b': ('/b1', '/b2')}
ROUTING = RouterParameters(
    split_percent=50,
    reply_timeout_s=1.0,
    hedge_factor=2.0,
    hedge_budget_percent=10.0,
    failover_slots='none',
)
STATE = np.zeros((1, 2), np.float32)
ROWS = np.zeros((2, 2), np.float32)
LOCK_LIMIT_S = 10.0


def ask_of(name: str = 'robot', epoch: int = 1, instance: int = 1) -> OpenSessionRequest:
    return session_request(name, epoch, f'/{name}/chunk', ('x', 'y'), instance=instance, fps=10.0)


def policy_of(slot: str) -> str:
    """Return the policy of a slot; no two of them have the same weights."""
    return 'b@7' if slot == 'b' else f'{slot}@1'


def status_of(
    policy: str, slot: str = 'a', *, active: bool = True, swapped: bool = False, **more: object
) -> ServerStatus:
    """Return the status of a server."""
    state = ServerStatus.State.ACTIVE if active else ServerStatus.State.INACTIVE
    swap = ServerStatus.Swap.DONE if swapped else ServerStatus.Swap.NONE
    kind = {'state_class': StateClass.CHUNK_STATELESS, 'max_sessions': 8, **more}
    return ServerStatus(policy=policy, slot=slot, state=state, warmed_up=True, swap=swap, **kind)


def episode_in(slot: str, salt: int = 0, split_percent: int = 50) -> str:
    """Return the name of an episode that the split puts there."""
    names = (f'episode-{salt}-{number}' for number in range(1000))
    return next(n for n in names if (bucket(n) < split_percent) == (slot == 'a'))


def request_bytes(
    name: str,
    seq: int,
    episode: str,
    *,
    epoch: int = 1,
    number: int = 0,
    executed: ExecutionReport | None = None,
    flags: Flag = Flag.NONE,
) -> bytes:
    header = Header(seq, 0, epoch, number, 1, MsgType.OBSERVATION, flags)
    extensions = (wire_executed.encode(executed),) if executed else ()
    return wire_observation.encode(
        Observation(header, name, episode, STATE, extensions=extensions)
    )


def answer_bytes(
    request: bytes, status: int = Status.OK, policy: str = '', slot: str = 'a', flags=0, **fields
) -> bytes:
    """Return what a server answers to a request; `fields` are more of the chunk."""
    header, name, episode = read_envelope(request)
    if status == Status.OK:
        fields |= {'robot': ROWS, 'model': ROWS}
    fields = {'client_id': name, 'status': status, 'policy': policy, 'slot': slot, **fields}
    return wire_chunk.encode(Chunk(header.for_reply(flags), episode_id=episode, **fields))


class LockedOutside(RecordingTransport):
    """Takes the lock of the routing table in each call, as anything out there might."""

    table: RoutingTable | None = None

    def called(self) -> None:
        taken = self.table.lock.acquire(timeout=LOCK_LIMIT_S)
        assert taken, 'called under the lock'
        self.table.lock.release()


class CountedTimer(RequestTimer):
    """The timer of the dispatcher; the outside counts how often it is woken."""

    def __init__(self, outside: RecordingTransport) -> None:
        super().__init__()
        self._outside = outside

    def wake(self) -> None:
        self._outside.wake()
        super().wake()


class Rig:
    """See the module. `now_ns` is the time; `advance` lets it pass."""

    def __init__(
        self,
        slots: dict[str, tuple[str, ...]] = SLOTS,
        *,
        routing: RouterParameters = ROUTING,
        capacity: int = 10_000,
        classes: dict[str, int] | None = None,
        outside: RecordingTransport | None = None,
        robot: str = '',
        **parameters: object,
    ) -> None:
        self.now_ns, self.drops = 1000 * SECOND, DropCounters()
        named = {f'slot_{name}': servers for name, servers in slots.items()}
        self.sticky = PlacementTable(capacity)
        self.table = RoutingTable(
            replace(routing, max_remembered_placements=capacity, **named, **parameters),
            placements=self.sticky,
        )
        self.slots, self.replicas = self.table.slots, self.table.replicas
        self.stats, self.robots = self.table.stats, self.table.sessions
        self.outside = outside or LockedOutside()
        self.outside.table = self.table
        self.dispatcher = Dispatcher(
            self.table,
            self.outside,
            self.outside,
            self.drops,
            self.outside.reopen_session,
            lambda replica, policy: self.slots[replica.slot].record_swap(
                replica.name, policy, self.now_ns
            ),
        )
        self.placement = self.dispatcher.placement
        self.dispatcher.timer = CountedTimer(self.outside)
        self.classes = classes or {}
        for slot in self.slots.values():
            slot.is_policy_pinned = True
            for server in slot.replicas:
                self.learn(server)
        self._seqs: Counter[str] = Counter()
        if robot:
            self.robot(robot)

    # what is there

    def learn(
        self, server: str, policy: str = '', *, active: bool = True, swapped: bool = False
    ) -> None:
        """A replica's status."""
        slot = self.replicas[server].slot
        more = {'state_class': self.classes.get(slot, StateClass.CHUNK_STATELESS)}
        policy = policy or policy_of(slot)
        seen = status_of(policy, slot, active=active, swapped=swapped, **more)
        with self.table.lock:
            self.slots[slot].record_report(server, seen, self.now_ns)

    def set_available(self, server: str, is_available: bool) -> None:
        """Find a server or not; one that is back tells of itself at once."""
        replica = self.replicas[server]
        replica.set_available(is_available=is_available)
        if is_available and replica.report:
            self.learn(server, replica.report.policy)

    def robot(
        self, name: str = 'robot', places: dict[str, tuple[str, ...]] | None = None, epoch: int = 1
    ) -> ClientSession:
        """Take in a robot that has its sessions already."""
        places = places or {slot.name: tuple(slot.replicas) for slot in self.slots.values()}
        robot = ClientSession(ask_of(name, epoch), places, self.now_ns)
        self.robots.add(robot)
        for slot_name, servers in places.items():
            for server in servers:
                self.slots[slot_name].replicas[server].sessions += 1
            self.slots[slot_name].replicas[servers[0]].preferring_sessions += 1
        return robot

    def drain(self, slot: str, *, after_s: float = 60.0) -> None:
        """An operator drains a slot."""
        self.slots[slot].drain = SlotDrain('maintenance', self.now_ns + int(after_s * SECOND))

    def rules(self, **changes: float) -> None:
        self.table.change_rules(replace(self.table.rules, **changes))

    # what happens

    def request(
        self,
        name: str = 'robot',
        episode: str = 'episode',
        *,
        epoch: int = 1,
        number: int = 0,
        executed: ExecutionReport | None = None,
    ) -> bytes:
        """A robot asks; return its bytes."""
        self._seqs[name] += 1
        raw = request_bytes(
            name, self._seqs[name], episode, epoch=epoch, number=number, executed=executed
        )
        self.dispatcher.on_request(raw, self.now_ns)
        return raw

    def answer(
        self, server: str, request: bytes, status: int = Status.OK, policy: str = '', flags=0
    ) -> None:
        """A replica answers, with its slot's policy."""
        slot = self.replicas[server].slot
        policy = policy or self.slots[slot].policy
        raw = answer_bytes(request, status, policy, slot, flags)
        self.dispatcher.on_reply(server, raw, self.now_ns)

    def advance(self, ns: int) -> None:
        """Let time pass, and the alarm go off whenever it is due."""
        until_ns = self.now_ns + ns
        while (due_ns := self.table.in_flight.next_due_ns) is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.dispatcher.on_timer(self.now_ns)
        self.now_ns = until_ns
        self.dispatcher.on_timer(self.now_ns)

    def round_trip(self, name: str = 'robot', episode: str = 'episode', ns: int = 10 * MS) -> str:
        """A robot asks, whoever was asked first answers after a while; return who that was."""
        raw = self.request(name, episode)
        server = next(server for server, sent in self.outside.sent if sent is raw)
        self.advance(ns)
        self.answer(server, raw)
        return server

    def warm_up(self, slot: str, count: int = 24, name: str = 'robot') -> None:
        """So many answers as a percentile takes."""
        for number in range(count):
            self.round_trip(name, episode_in(slot, salt=number))

    # what came of it

    def forget(self) -> None:
        """Look only at what comes from now on."""
        self.outside.sent.clear()
        self.outside.replies.clear()
        self.outside.failures.clear()

    @property
    def servers(self) -> list[str]:
        """Who was asked since the last look."""
        servers = [server for server, _ in self.outside.sent]
        self.outside.sent.clear()
        return servers

    @property
    def replies(self) -> list[tuple[int, int, str]]:
        """Seq, flags and slot of what the robots got since the last look."""
        chunks = [wire_chunk.decode(raw) for _, raw in self.outside.replies]
        self.outside.replies.clear()
        return [(chunk.header.seq, chunk.header.flags, chunk.slot) for chunk in chunks]

    @property
    def texts(self) -> list[str]:
        """What robots were told that got no actions since the last look."""
        texts = [text for _, _, text in self.outside.failures]
        self.outside.failures.clear()
        return texts

    def drop(self, reason: str) -> int:
        return self.drops.counts().get(reason, 0)


def check_counts(slots: dict[str, Slot], robots: ClientSessions) -> None:
    """What replicas count of sessions and robots is what the robots' places say."""
    sessions, firsts = Counter(), Counter()
    for robot in robots:
        for servers in robot.places.values():
            sessions.update(servers)
            firsts.update(servers[:1])
    for slot in slots.values():
        for replica in slot:
            counted = replica.sessions, replica.preferring_sessions
            assert counted == (sessions[replica.name], firsts[replica.name]), replica.name
