# SPDX-License-Identifier: Apache-2.0
"""What random scripts for a router are made of, and a book of what its robots asked and got."""

from __future__ import annotations

from collections import Counter
import contextlib

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.router.data_path.in_flight import InFlightRequest, RequestPurpose
from lerobot_serve.router.placement.episode_placement import ready_replicas
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.sessions.client_sessions import ClientSession
from support.router.dispatch_rig import answer_bytes, ask_of, MS, request_bytes, SECOND
from support.router.replica_rig import ControlRig

ROBOTS = ('r1', 'r2', 'r3')
EPISODES = ('same', 'same', 'new', 'none')
SERVERS = ('/a1', '/a2', '/b1', '/b2')
FAILURES = (*(status for status in Status if status != Status.OK), 99)
# how a server answers what it gets
MOODS = {
    'well': (Status.OK,),
    'repeating': (Status.OK, Status.OK),
    'stranger': (Status.OK,),
    'nan': (Status.NOT_FINITE,),
    'failing': (Status.POLICY_ERROR,),
    'forgetful': (Status.NO_SESSION,),
    'leaving': (Status.DRAINING,),
    'picky': (Status.BAD_OBSERVATION,),
    'busy': (Status.TOO_LATE,),
    'odd': (99,),
}
ALL_MOODS = (*MOODS, 'silent', 'lossy')
TIMES_NS = (MS, 6 * MS, 50 * MS, 400 * MS, 1100 * MS, 2500 * MS, 10 * SECOND)
# how a request may end but by an answer or a failure chunk
ENDS = ('superseded', 'session_over', 'episode_over')


class Book:
    """What robots asked and got, as they see it; checks each chunk when it comes."""

    def __init__(self) -> None:
        self.accepted: set[tuple[str, int, int]] = set()
        self.newest: dict[str, tuple[int, int]] = {}
        self.concluded: Counter[tuple[str, int, int]] = Counter()
        # client -> episode and slot of its last chunk with actions
        self.last: dict[str, tuple[str, str]] = {}
        # client -> whom its last live request of the episode went to
        self.asked: dict[str, Replica] = {}
        self.lost_state: set[str] = set()
        self.episodes: dict[str, str] = {}
        self.failed = 0

    def on_request(self, name: str, epoch: int, seq: int, episode: str) -> None:
        self.accepted.add((name, epoch, seq))
        self.newest[name] = epoch, seq
        if self.episodes.get(name) != episode:
            # who goes back to an episode has its state told of by the server
            self.forget_state(name)
        self.episodes[name] = episode

    def on_live(self, flight: InFlightRequest, replica: Replica) -> None:
        """A replica was asked, whose answer is for the robot."""
        name = flight.session.request.client_id
        left = self.asked.get(name, replica)
        if left is not replica and not left.is_stateless:
            self.lost_state.add(name)
        self.asked[name] = replica

    def on_reply(self, robot: ClientSession, raw: bytes) -> None:
        chunk = wire_chunk.decode(raw)
        name, epoch = robot.request.client_id, robot.request.session_epoch
        self.conclude(name, epoch, chunk.header.seq)
        if chunk.status != Status.OK:
            return
        now = chunk.episode_id, chunk.slot
        before = self.last.get(name)
        if now[0] and before and before[0] == now[0] and before[1] != now[1]:
            assert chunk.header.flags & Flag.POLICY_CHANGED, 'a move that was not flagged'
        self.last[name] = now
        if name in self.lost_state:
            assert chunk.header.flags & Flag.STATE_LOST, 'state that was lost untold'
            self.lost_state.discard(name)

    def on_fail(self, flight: InFlightRequest) -> None:
        ask = flight.session.request
        self.failed += 1
        self.conclude(ask.client_id, ask.session_epoch, flight.seq)

    def forget(self, name: str) -> None:
        """Another robot of that name."""
        self.last.pop(name, None)
        self.forget_state(name)

    def forget_state(self, name: str) -> None:
        self.asked.pop(name, None)
        self.lost_state.discard(name)

    def conclude(self, name: str, epoch: int, seq: int) -> None:
        key = name, epoch, seq
        self.concluded[key] += 1
        assert self.concluded[key] == 1, 'answered twice'
        assert self.newest[name] == (epoch, seq), 'an answer to an older request'


class World:
    """A router, its servers as they feel, and robots that ask; three robots, slot b of a class."""

    def __init__(self, state_class: int) -> None:
        self.rig = ControlRig(classes={'b': state_class})
        self.book = Book()
        self.epochs = dict.fromkeys(ROBOTS, 0)
        self.seqs: Counter[str] = Counter()
        self.instances: dict[str, int] = {}
        self.episodes = dict.fromkeys(ROBOTS, '')
        self.numbers: Counter[str] = Counter()
        # requests that servers have, newest last
        self.at_servers: list[tuple[str, bytes]] = []
        self.requests: Counter[str] = Counter()
        self.hedges: Counter[str] = Counter()
        self.moods = dict.fromkeys(SERVERS, 'well')
        self.in_time = False
        self.watch_asking()
        for name in ROBOTS:
            self.open(name)
        # until late answers are known as late
        self.work(12, 4 * MS)

    def watch_asking(self) -> None:
        asking = self.rig.dispatcher._forwarder
        original = asking._send_copy

        def ask(flight, replica, purpose, step):
            assert replica.name not in flight.tried_servers, 'asked twice'
            assert not flight.is_done
            if purpose is RequestPurpose.HEDGE:
                assert replica.is_stateless, 'a second try of what has state'
                self.hedges[flight.slot] += 1
            elif purpose is RequestPurpose.LIVE:
                assert replica.slot == flight.slot
                self.book.on_live(flight, replica)
            return original(flight, replica, purpose, step)

        asking._send_copy = ask

    def open(self, name: str, instance: int = 1) -> None:
        with contextlib.suppress(SessionRefused):
            self.rig.control.open(ask_of(name, self.epochs[name] + 1, instance))
            self.epochs[name] += 1
            self.seqs[name] = 0
            if instance != self.instances.get(name):
                self.book.forget(name)
            self.instances[name] = instance

    def collect(self) -> None:
        """Take what was done to the outside."""
        outside = self.rig.outside
        self.at_servers += outside.sent
        del self.at_servers[:-40]
        outside.sent.clear()
        while outside.failures:
            self.book.on_fail(outside.failures.popleft()[0])
        while outside.replies:
            self.book.on_reply(*outside.replies.popleft())
        while outside.decisions:
            self.check_decision(*outside.decisions.popleft())

    def check_decision(
        self, robot: ClientSession, flight: InFlightRequest, placement: Placement
    ) -> None:
        """An episode leaves only a slot that cannot answer it, or that was drained long ago."""
        if not placement.moved or placement.sticky:
            return
        other = self.rig.slots['b' if placement.slot == 'a' else 'a']
        assert flight.episode_id
        if other.conditions(self.rig.now_ns).leaving:
            return
        assert self.in_time or not (ready_replicas(robot, other) and other.health.is_healthy)

    def ask(self, name: str, episode: str) -> None:
        self.seqs[name] += 1
        key = name, self.epochs[name], self.seqs[name]
        robot = self.rig.robots.find(name, self.epochs[name])
        if robot:
            self.book.on_request(*key, episode)
        raw = request_bytes(name, key[2], episode, epoch=key[1], number=self.numbers[name])
        self.rig.dispatcher.on_request(raw, self.rig.now_ns)
        if robot:
            self.requests[robot.slot] += 1
        self.collect()

    def server_answers(self, server: str, raw: bytes, status: int, policy: str = '') -> None:
        slot = self.rig.replicas[server].slot
        policy = policy or self.rig.slots[slot].policy
        answer = answer_bytes(raw, status, policy, slot)
        self.rig.dispatcher.on_reply(server, answer, self.rig.now_ns)

    def deliver(self) -> None:
        """Let every server do with what it has as it feels."""
        having, self.at_servers = self.at_servers, []
        for server, raw in having:
            mood = self.moods[server]
            if mood == 'silent':
                self.at_servers.append((server, raw))
            elif mood != 'lossy':
                for status in MOODS[mood]:
                    policy = 'other@9' if mood == 'stranger' else ''
                    self.server_answers(server, raw, status, policy)
        del self.at_servers[:-40]
        self.collect()

    def work(self, count: int, step_ns: int = 20 * MS) -> None:
        for name in ROBOTS:
            if self.rig.robots.current(name) is None:
                self.open(name)
        for _ in range(count):
            for name in ROBOTS:
                self.ask(name, self.episodes[name])
            self.tick(3 * MS)
            self.deliver()
            self.tick(step_ns)
            self.deliver()

    def tick(self, ns: int) -> None:
        self.in_time = True
        self.rig.advance(ns)
        self.collect()
        self.in_time = False
