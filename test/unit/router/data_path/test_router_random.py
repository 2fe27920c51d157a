# SPDX-License-Identifier: Apache-2.0
"""Random scripts for the router's data path: no request is lost uncounted, none answered twice."""

from __future__ import annotations

from collections import Counter
import contextlib
from types import SimpleNamespace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, RuleBasedStateMachine
from support.router.dispatch_rig import check_counts, MS, ROUTING, SECOND
from support.router.script_rig import (
    ALL_MOODS,
    ENDS,
    EPISODES,
    FAILURES,
    ROBOTS,
    SERVERS,
    TIMES_NS,
    World,
)

from lerobot_serve.contract.schema import Refusal, StateClass, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.router.data_path.hedging import HEDGE_BURST
from lerobot_serve.router.replicas.slot import SlotDrain

COUNTS = st.integers(0, 8)


class Router(RuleBasedStateMachine):
    """The data path with two slots of two replicas, their servers, robots and an operator."""

    state_class = StateClass.CHUNK_STATELESS

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.state_class)

    # robots

    @rule(name=st.sampled_from(ROBOTS), what=st.sampled_from(EPISODES))
    def request(self, name, what):
        if what == 'new':
            self.world.numbers[name] += 1
            self.world.episodes[name] = f'{name}-{self.world.numbers[name]}'
        episode = '' if what == 'none' else self.world.episodes[name]
        self.world.ask(name, episode)

    @rule(name=st.sampled_from(ROBOTS))
    def request_of_a_shared_episode(self, name):
        self.world.ask(name, 'shared')

    @rule(name=st.sampled_from(ROBOTS), instance=st.sampled_from((1, 1, 2)))
    def open_again(self, name, instance):
        self.world.open(name, instance)

    @rule(name=st.sampled_from(ROBOTS))
    def open_twice(self, name):
        robot = self.world.rig.robots.current(name)
        if robot:
            with contextlib.suppress(SessionRefused):
                self.world.rig.control.open(robot.request)

    @rule(name=st.sampled_from(ROBOTS))
    def close(self, name):
        self.world.rig.control.close(name, self.world.epochs[name])
        # servers tell of the state that goes with a session
        self.world.book.forget_state(name)

    @rule(name=st.sampled_from(ROBOTS))
    def reset(self, name):
        self.world.numbers[name] += 1
        self.world.episodes[name] = f'{name}-{self.world.numbers[name]}'
        self.world.rig.control.reset(
            SimpleNamespace(
                client_id=name,
                session_epoch=self.world.epochs[name],
                episode=self.world.numbers[name],
            )
        )

    # servers

    @rule(server=st.sampled_from(SERVERS), mood=st.sampled_from(ALL_MOODS), count=COUNTS)
    def feels(self, server, mood, count):
        self.world.moods[server] = mood
        self.world.work(count)

    @rule()
    def all_feel_well(self):
        self.world.moods = dict.fromkeys(SERVERS, 'well')

    @rule(count=st.integers(1, 12), step_ns=st.sampled_from((4 * MS, 40 * MS, 400 * MS)))
    def robots_work(self, count, step_ns):
        self.world.work(count, step_ns)

    @precondition(lambda self: self.world.at_servers)
    @rule(index=st.integers(0, 39), status=st.sampled_from((Status.OK, *FAILURES)))
    def one_answers(self, index, status):
        server, raw = self.world.at_servers[-1 - index % len(self.world.at_servers)]
        self.world.server_answers(server, raw, status)
        self.world.collect()

    @rule(server=st.sampled_from(SERVERS), raw=st.binary(max_size=64))
    def answers_nonsense(self, server, raw):
        self.world.rig.dispatcher.on_reply(server, raw, self.world.rig.now_ns)

    # the servers' lives

    @rule(server=st.sampled_from(SERVERS), is_available=st.booleans(), count=COUNTS)
    def comes_or_goes(self, server, is_available, count):
        self.world.rig.set_available(server, is_available)
        self.world.work(count)

    @rule(server=st.sampled_from(SERVERS), active=st.booleans(), number=st.sampled_from((1, 1, 2)))
    def restarts(self, server, active, number):
        self.world.rig.clients[server].restart()
        slot = self.world.rig.replicas[server].slot
        self.world.rig.learn(server, f'{slot}@{number}', active=active)

    @rule(server=st.sampled_from(SERVERS), hangs=st.booleans())
    def answers_no_call(self, server, hangs):
        self.world.rig.clients[server].hangs = hangs

    @rule(
        server=st.sampled_from(SERVERS),
        code=st.sampled_from((None, Refusal.CAPACITY, Refusal.DRAINING, Refusal.ACTION_NAMES)),
    )
    def refuses(self, server, code):
        self.world.rig.clients[server].refuses = code

    # time and operators

    @rule(ns=st.sampled_from(TIMES_NS))
    def time_passes(self, ns):
        self.world.tick(ns)

    @rule(ns=st.sampled_from(TIMES_NS))
    def the_clock_jumps(self, ns):
        self.world.rig.now_ns += ns
        self.world.tick(0)

    @rule(ns=st.sampled_from(TIMES_NS))
    def the_alarm_is_late(self, ns):
        self.world.rig.now_ns += ns

    @rule()
    def control_looks(self):
        self.world.rig.poll()
        while self.world.rig.outside.reopened:
            self.world.rig.control.reopen_session(*self.world.rig.outside.reopened.popleft())

    @rule(split=st.integers(0, 100), count=COUNTS)
    def split(self, split, count):
        self.world.rig.rules(split_percent=split)
        self.world.work(count)

    @rule(timeout_ns=st.sampled_from((100 * MS, SECOND, 5 * SECOND)))
    def timeout(self, timeout_ns):
        self.world.rig.rules(reply_timeout_s=timeout_ns / SECOND)

    @rule(
        slot=st.sampled_from('ab'),
        what=st.sampled_from(('close', 'mark_healthy', 'probe_now')),
        count=COUNTS,
    )
    def operate(self, slot, what, count):
        slot = self.world.rig.slots[slot]
        if what == 'close':
            rig = self.world.rig
            slot.drain = SlotDrain('by an operator', rig.now_ns + 5 * SECOND)
        else:
            slot.drain = slot.drain if what == 'probe_now' else None
            for health in (slot.health, *(replica.health for replica in slot)):
                getattr(health, what)()
        self.world.work(count)

    # what must hold

    @invariant()
    def no_request_is_lost(self):
        rig, book = self.world.rig, self.world.book
        ended = sum(rig.drop(reason) for reason in ENDS)
        open_ones = len(rig.table.in_flight)
        assert len(book.accepted) == sum(book.concluded.values()) + ended + open_ones
        assert sum(map(rig.drop, ('unanswered', 'no_slot', 'timeout'))) == book.failed
        told = Counter(reason for _, reason in rig.outside.ended)
        assert all(told[reason] == rig.drop(reason) for reason in ENDS)
        assert all(flight.is_new for _, flight, _ in rig.outside.decisions)

    @invariant()
    def who_is_waited_for_was_asked(self):
        flights = self.world.rig.table.in_flight
        for name in ROBOTS:
            newest = flights.newest(name)
            if newest and not newest.is_done:
                assert newest.session is self.world.rig.robots.current(name)
                assert flights.pending_servers(newest)
                assert flights.next_due_ns is not None
            elif newest:
                assert newest.raw == b''

    @invariant()
    def counts_are_right(self):
        check_counts(self.world.rig.slots, self.world.rig.robots)

    @invariant()
    def hedges_keep_to_the_budget(self):
        for slot, hedges in self.world.hedges.items():
            assert (
                hedges
                <= HEDGE_BURST + self.world.requests[slot] * ROUTING.hedge_budget_percent / 100
            )

    @invariant()
    def little_is_kept(self):
        assert self.world.rig.table.in_flight.size < 64 + 30 * len(ROBOTS) * len(SERVERS)

    def teardown(self):
        self.world.rig.callers.close()


class StatefulRouter(Router):
    """Slot b has a policy that remembers."""

    state_class = StateClass.RECURRENT


TestRouter = Router.TestCase
TestStatefulRouter = StatefulRouter.TestCase
TestRouter.settings = TestStatefulRouter.settings = settings(
    max_examples=30, stateful_step_count=50
)
