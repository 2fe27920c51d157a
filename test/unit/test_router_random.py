"""Random scripts for the router's data path: no request is lost uncounted, none answered twice."""

from __future__ import annotations

from collections import Counter
import contextlib
from types import SimpleNamespace

from dispatch_rig import answer_bytes, ask_of, check_counts, MS, request_bytes, ROUTING, SECOND
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, RuleBasedStateMachine
from replica_rig import ControlRig

from lerobot_serve.router.flights import Purpose
from lerobot_serve.router.places import usable
from lerobot_serve.router.rules import HEDGE_BURST
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.schema import Flag, Refusal, StateClass, Status
from lerobot_serve.wire.session import Refused

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
COUNTS = st.integers(0, 8)
TIMES_NS = (MS, 6 * MS, 50 * MS, 400 * MS, 1100 * MS, 2500 * MS, 10 * SECOND)
# how a request may end but by an answer or a failure chunk
ENDS = ('superseded', 'timeout', 'session_over', 'episode_over')


class Book:
    """What robots asked and got, as they see it; checks each chunk when it comes."""

    def __init__(self) -> None:
        self.accepted: dict[tuple[str, int, int], str] = {}
        self.newest: dict[str, tuple[int, int]] = {}
        self.concluded: Counter[tuple[str, int, int]] = Counter()
        # client -> episode and slot of its last chunk with actions
        self.last: dict[str, tuple[str, str]] = {}
        # client -> episode, slot and server of its last live request
        self.asked: dict[str, tuple[str, str, str]] = {}
        self.lost_state: set[str] = set()
        self.failed = 0

    def on_reply(self, robot, raw: bytes) -> None:
        chunk = wire_chunk.decode(raw)
        name, epoch = robot.ask.client_id, robot.ask.session_epoch
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

    def on_fail(self, flight) -> None:
        ask = flight.robot.ask
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


class Router(RuleBasedStateMachine):
    """The data path with two slots of two replicas, their servers, robots and an operator."""

    state_class = StateClass.CHUNK_STATELESS

    def __init__(self) -> None:
        super().__init__()
        classes = {'b': self.state_class}
        self.rig = ControlRig(classes=classes)
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
        asking = self.rig.dispatcher.asking
        original = asking._ask

        def ask(flight, replica, purpose, acts, now_ns):
            assert replica.name not in flight.tried, 'asked twice'
            assert not flight.done
            if purpose is Purpose.HEDGE:
                assert replica.is_stateless, 'a second try of what has state'
                self.hedges[flight.slot] += 1
            elif purpose is Purpose.LIVE:
                assert replica.slot == flight.slot
                self.note_live(flight, replica)
            return original(flight, replica, purpose, acts, now_ns)

        asking._ask = ask

    def note_live(self, flight, replica) -> None:
        name = flight.robot.ask.client_id
        before = self.book.asked.get(name)
        now = flight.episode_id, flight.slot, replica.name
        is_same = before is not None and before[0] == flight.episode_id
        if not is_same:
            self.book.lost_state.discard(name)
        elif before[2] != now[2] and not replica.is_stateless:
            self.book.lost_state.add(name)
        self.book.asked[name] = now

    def open(self, name: str, instance: int = 1) -> None:
        with contextlib.suppress(Refused):
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

    def check_decision(self, robot, flight, placement) -> None:
        """An episode leaves only a slot that cannot answer it."""
        if not placement.moved or placement.cached:
            return
        other = self.rig.slots['b' if placement.slot == 'a' else 'a']
        assert flight.episode_id
        assert self.in_time or not (usable(robot, other) and other.health.is_healthy)

    # robots

    @rule(name=st.sampled_from(ROBOTS), what=st.sampled_from(EPISODES))
    def request(self, name, what):
        if what == 'new':
            self.numbers[name] += 1
            self.episodes[name] = f'{name}-{self.numbers[name]}'
        episode = '' if what == 'none' else self.episodes[name]
        self.ask(name, episode)

    @rule(name=st.sampled_from(ROBOTS))
    def request_of_a_shared_episode(self, name):
        self.ask(name, 'shared')

    def ask(self, name: str, episode: str) -> None:
        self.seqs[name] += 1
        key = name, self.epochs[name], self.seqs[name]
        robot = self.rig.robots.find(name, self.epochs[name])
        if robot:
            self.book.accepted[key] = episode
            self.book.newest[name] = key[1:]
        raw = request_bytes(name, key[2], episode, epoch=key[1], number=self.numbers[name])
        self.rig.dispatcher.on_request(raw, self.rig.now_ns)
        if robot:
            self.requests[robot.slot] += 1
        self.collect()

    @rule(name=st.sampled_from(ROBOTS), instance=st.sampled_from((1, 1, 2)))
    def open_again(self, name, instance):
        self.open(name, instance)

    @rule(name=st.sampled_from(ROBOTS))
    def open_twice(self, name):
        robot = self.rig.robots.current(name)
        if robot:
            with contextlib.suppress(Refused):
                self.rig.control.open(robot.ask)

    @rule(name=st.sampled_from(ROBOTS))
    def close(self, name):
        self.rig.control.close(name, self.epochs[name])
        # servers tell of the state that goes with a session
        self.book.forget_state(name)

    @rule(name=st.sampled_from(ROBOTS))
    def reset(self, name):
        self.numbers[name] += 1
        self.episodes[name] = f'{name}-{self.numbers[name]}'
        self.rig.control.reset(
            SimpleNamespace(
                client_id=name, session_epoch=self.epochs[name], episode=self.numbers[name]
            )
        )

    # servers

    def server_answers(self, server: str, raw: bytes, status: int, policy: str = '') -> None:
        slot = self.rig.replicas[server].slot
        policy = policy or self.rig.slots[slot].policy
        answer = answer_bytes(raw, status, policy, slot)
        self.rig.dispatcher.on_answer(server, answer, self.rig.now_ns)

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

    @rule(server=st.sampled_from(SERVERS), mood=st.sampled_from(ALL_MOODS), count=COUNTS)
    def feels(self, server, mood, count):
        self.moods[server] = mood
        self.work(count)

    @rule()
    def all_feel_well(self):
        self.moods = dict.fromkeys(SERVERS, 'well')

    @rule(count=st.integers(1, 12), step_ns=st.sampled_from((4 * MS, 40 * MS, 400 * MS)))
    def robots_work(self, count, step_ns):
        self.work(count, step_ns)

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

    @precondition(lambda self: self.at_servers)
    @rule(index=st.integers(0, 39), status=st.sampled_from((Status.OK, *FAILURES)))
    def one_answers(self, index, status):
        server, raw = self.at_servers[-1 - index % len(self.at_servers)]
        self.server_answers(server, raw, status)
        self.collect()

    @rule(server=st.sampled_from(SERVERS), raw=st.binary(max_size=64))
    def answers_nonsense(self, server, raw):
        self.rig.dispatcher.on_answer(server, raw, self.rig.now_ns)

    # the servers' lives

    @rule(server=st.sampled_from(SERVERS), is_there=st.booleans(), count=COUNTS)
    def comes_or_goes(self, server, is_there, count):
        self.rig.note_there(server, is_there)
        self.work(count)

    @rule(server=st.sampled_from(SERVERS), active=st.booleans(), number=st.sampled_from((1, 1, 2)))
    def restarts(self, server, active, number):
        self.rig.clients[server].restart()
        slot = self.rig.replicas[server].slot
        self.rig.learn(server, f'{slot}@{number}', active=active)

    @rule(server=st.sampled_from(SERVERS), hangs=st.booleans())
    def answers_no_call(self, server, hangs):
        self.rig.clients[server].hangs = hangs

    @rule(
        server=st.sampled_from(SERVERS),
        code=st.sampled_from((None, Refusal.CAPACITY, Refusal.DRAINING, Refusal.ACTION_NAMES)),
    )
    def refuses(self, server, code):
        self.rig.clients[server].refuses = code

    # time and operators

    def tick(self, ns: int) -> None:
        self.in_time = True
        self.rig.advance(ns)
        self.collect()
        self.in_time = False

    @rule(ns=st.sampled_from(TIMES_NS))
    def time_passes(self, ns):
        self.tick(ns)

    @rule(ns=st.sampled_from(TIMES_NS))
    def the_clock_jumps(self, ns):
        self.rig.now_ns += ns
        self.tick(0)

    @rule(ns=st.sampled_from(TIMES_NS))
    def the_alarm_is_late(self, ns):
        self.rig.now_ns += ns

    @rule()
    def control_looks(self):
        self.rig.look()
        while self.rig.outside.reopened:
            self.rig.control.reopen(*self.rig.outside.reopened.popleft())

    @rule(split=st.integers(0, 100), count=COUNTS)
    def split(self, split, count):
        self.rig.rules(split_percent=split)
        self.work(count)

    @rule(timeout_ns=st.sampled_from((100 * MS, SECOND, 5 * SECOND)))
    def timeout(self, timeout_ns):
        self.rig.rules(timeout_ns=timeout_ns)

    @rule(
        slot=st.sampled_from('ab'),
        what=st.sampled_from(('close', 'restore', 'hurry')),
        count=COUNTS,
    )
    def operate(self, slot, what, count):
        slot = self.rig.slots[slot]
        if what == 'close':
            slot.health.close('by an operator')
        else:
            for health in (slot.health, *(replica.health for replica in slot)):
                getattr(health, what)()
        self.work(count)

    # what must hold

    @invariant()
    def no_request_is_lost(self):
        rig, book = self.rig, self.book
        ended = sum(rig.drop(reason) for reason in ENDS)
        open_ones = len(rig.dispatcher.flights)
        assert len(book.accepted) == sum(book.concluded.values()) + ended + open_ones
        assert rig.drop('unanswered') == book.failed

    @invariant()
    def who_is_waited_for_was_asked(self):
        flights = self.rig.dispatcher.flights
        for name in ROBOTS:
            newest = flights.newest(name)
            if newest and not newest.done:
                assert newest.robot is self.rig.robots.current(name)
                assert flights.asked_of(newest)
                assert flights.next_due_ns is not None
            elif newest:
                assert newest.raw == b''

    @invariant()
    def counts_are_right(self):
        check_counts(self.rig.slots, self.rig.robots)

    @invariant()
    def hedges_keep_to_the_budget(self):
        for slot, hedges in self.hedges.items():
            assert hedges <= HEDGE_BURST + self.requests[slot] * ROUTING.hedge_percent / 100

    @invariant()
    def little_is_kept(self):
        assert self.rig.dispatcher.flights.size < 64 + 30 * len(ROBOTS) * len(SERVERS)

    def teardown(self):
        self.rig.callers.close()


class StatefulRouter(Router):
    """Slot b has a policy that remembers."""

    state_class = StateClass.RECURRENT


TestRouter = Router.TestCase
TestStatefulRouter = StatefulRouter.TestCase
TestRouter.settings = TestStatefulRouter.settings = settings(
    max_examples=40, stateful_step_count=60
)
