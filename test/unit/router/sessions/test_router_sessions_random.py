# SPDX-License-Identifier: Apache-2.0
"""Random scripts for the control thread: counts and places stay right whatever servers do."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, RuleBasedStateMachine
from support.router.dispatch_rig import ask_of, check_counts, episode_in, MS, SECOND
from support.router.replica_rig import ControlRig

from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused


class Sessions(RuleBasedStateMachine):
    """Whatever servers do: counts, and what servers have, are what the router thinks."""

    names = st.sampled_from(('r1', 'r2', 'r3'))
    servers = st.sampled_from(('/a1', '/a2', '/b1', '/b2'))

    def __init__(self) -> None:
        super().__init__()
        self.rig = ControlRig()
        self.epochs = dict.fromkeys(('r1', 'r2', 'r3'), 1)

    @rule(name=names, newer=st.booleans(), instance=st.sampled_from((1, 1, 2)))
    def opens(self, name, newer, instance):
        self.epochs[name] += newer
        ask = ask_of(name, self.epochs[name], instance)
        had = self.rig.robots.current(name)
        try:
            self.rig.control.open(ask)
        except SessionRefused:
            assert self.rig.robots.current(name) is had
        else:
            assert self.rig.robots.current(name).request == ask

    @rule(name=names)
    def closes(self, name):
        self.rig.control.close(name, self.epochs[name])

    @rule(name=names, slot=st.sampled_from('ab'), answers=st.booleans())
    def asks(self, name, slot, answers):
        raw = self.rig.request(name, episode_in(slot), epoch=self.epochs[name])
        for server in self.rig.servers:
            if answers:
                self.rig.answer(server, raw)
        self.rig.forget()

    @rule(name=names, server=servers)
    def reopens(self, name, server):
        robot = self.rig.robots.current(name)
        if robot:
            self.rig.control.reopen_session(robot, server)

    @rule(server=servers, mood=st.sampled_from(('well', 'hangs', 'full', 'leaves', 'misfit')))
    def feels(self, server, mood):
        client = self.rig.clients[server]
        client.hangs = mood == 'hangs'
        refusals = {'full': Refusal.CAPACITY, 'leaves': Refusal.DRAINING, 'misfit': Refusal.FPS}
        client.refuses = refusals.get(mood)

    @rule(server=servers)
    def restarts(self, server):
        self.rig.clients[server].restart()

    @rule(server=servers, is_available=st.booleans())
    def comes_or_goes(self, server, is_available):
        self.rig.set_available(server, is_available)

    @rule(server=servers)
    def is_suspect(self, server):
        self.rig.replicas[server].health.mark_unhealthy('x', self.rig.now_ns)

    @rule(ns=st.sampled_from((MS, SECOND, 20 * SECOND)))
    def time_passes(self, ns):
        self.rig.advance(ns)
        self.rig.poll_until_probed()

    @invariant()
    def counts_are_what_places_say(self):
        check_counts(self.rig.slots, self.rig.robots)

    @invariant()
    def nobody_has_two_places_at_one_server(self):
        for robot in self.rig.robots:
            for servers in robot.places.values():
                assert len(set(servers)) == len(servers) <= 2

    def teardown(self):
        """With all of them well again, each robot gets what it needs, and all ends with it."""
        rig = self.rig
        try:
            for server, client in rig.clients.items():
                client.hangs, client.refuses = False, None
                rig.set_available(server, True)
                rig.replicas[server].health.mark_healthy()
            for robot in rig.robots:
                robot.refused.clear()
            for _ in range(4):
                rig.poll_until_probed()
            assert all(len(s) == 2 for r in rig.robots for s in r.places.values())
            assert all(len(robot.places) == 2 for robot in rig.robots)
            for name, epoch in self.epochs.items():
                rig.control.close(name, epoch)
        finally:
            rig.callers.close()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=40, stateful_step_count=30)
