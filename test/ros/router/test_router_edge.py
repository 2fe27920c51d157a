# SPDX-License-Identifier: Apache-2.0
"""A robot that plays through a router: what happens behind it does not stop the arm."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.nodes.edge_rig import BUFFERED, EdgeRig
from support.nodes.router_rig import ROUTER, RouterRig
from support.nodes.swapping import Swapper
from support.nodes.zenoh_links import both_links

from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction

pytestmark = pytest.mark.long

# seven seconds a chunk, of which the next is asked for after two
LONG = '&chunk=210&rtc=1'
QUICK = {'reply_timeout_s': 1.2}
PATIENT = {**BUFFERED, 'rtc': True, 'request_timeout_s': 4.0}


@dataclass(frozen=True)
class Cell:
    """A robot, and the router that it asks."""

    edge: EdgeRig
    router: RouterRig

    def start(self) -> None:
        self.edge.start(servers=[ROUTER], **PATIENT)
        self.edge.wait_for_play()

    @property
    def played(self) -> list[ExecutedAction]:
        return self.edge.seen.played

    def wait_for_slot(self, name: str) -> ExecutedAction:
        """Wait until something of this slot is played."""

        def last() -> ExecutedAction | None:
            return self.played[-1] if self.played[-1:] and self.played[-1].slot == name else None

        return self.edge.wait(last, f'slot {name} is played')

    def prefixes(self, policy: str) -> list[int]:
        """Return how many rows a policy got with each request."""
        return [int(e.split()[1]) for e in self.router.steering(policy).events('prefix')]

    def assert_smooth(self) -> None:
        """The robot has played all the time, within one session."""
        seen = self.edge.seen
        assert seen.rungs == {EdgeState.RUNG_POLICY}
        assert seen.last.stalls == 0
        states = {state.state for state in seen.states}
        assert not states & {EdgeState.STALLED, EdgeState.DEAD}
        assert len({action.session_epoch for action in seen.played}) == 1


@pytest.fixture
def cell(node, router_rig, tmp_path) -> Cell:
    edge = EdgeRig(node, router_rig.fleet, tmp_path)
    yield Cell(edge, router_rig)
    edge.end()


@pytest.mark.slow
def test_a_replica_that_is_killed_in_an_episode_is_not_felt(cell):
    rig = cell.router
    for name in ('one', 'two'):
        rig.server(name, 'prod', policy='p', options=LONG)
    rig.server('shadow', 'prod', options='&offset=0.01')
    rig.router(slot_prod=['one', 'two'], shadow_server='/shadow/policy_server', **QUICK)
    rig.wait_for_health('healthy')
    cell.start()
    # whose actions these are
    action = cell.wait_for_slot('prod')
    assert action.policy == rig.slot('prod').policy
    assert action.policy.startswith('steered@')
    assert action.client_id == 'robot_1'
    found = cell.edge.wait(lambda: rig.watch.divergences, 'the shadow is compared')[0]
    assert found.limits_known
    assert not found.cage_would_trip

    episode = action.episode_id
    cell.edge.wait(lambda: max(cell.prefixes('p')) > 0, 'real-time chunking is at work')
    first = rig.wait_for_decision(episode).server.split('/')[1]
    rig.kill(first)
    cell.edge.wait(lambda: not ready(rig, first), 'that it is gone is seen')
    asked = len(cell.prefixes('p'))
    cell.edge.wait(lambda: len(cell.prefixes('p')) >= asked + 2, 'the other one answers')
    cell.edge.wait_for_play()
    cell.assert_smooth()
    assert {a.episode_id for a in cell.played} == {episode}


@pytest.mark.slow
def test_a_stall_ends_with_that_of_the_only_server(cell):
    """The robot would wait for a minute for a request that the router gave up."""
    rig, edge = cell.router, cell.edge
    rig.server('one', 'prod')
    rig.router(slot_prod=['one'], reply_timeout_s=0.5)
    rig.wait_for_health('healthy')
    edge.start(servers=[ROUTER], **{**PATIENT, 'rtc': False, 'request_timeout_s': 60.0})
    edge.wait_for_play()
    rig.hang('one')
    edge.wait(lambda: edge.seen.last.stalls, 'the robot stalls')
    rig.wait_for_drop('timeout')
    edge.wait(lambda: 'no_slot' in edge.seen.drops(), 'the robot hears of it')
    rig.go_on('one')
    edge.wait_for_play()
    # not by its own time limit
    assert 'request_timeout' not in edge.seen.drops()


def ready(rig, name: str) -> bool:
    (slot,) = rig.state.slots
    return next(not r.text for r in slot.replicas if r.server == f'/{name}/policy_server')


@pytest.mark.slow
@both_links
def test_an_episode_whose_slot_dies_goes_on_in_the_other_without_its_prefix(cell):
    rig = cell.router
    for name in ('a', 'b'):
        rig.server(name, name, options=LONG)
    rig.router(slot_a=['a'], slot_b=['b'], split_percent=0, failover_slots='a', **QUICK)
    rig.wait_for_health('healthy')
    cell.start()
    episode = cell.wait_for_slot('b').episode_id
    cell.edge.wait(lambda: max(cell.prefixes('b')) > 0, 'real-time chunking is at work')
    rig.kill('b')
    action = cell.wait_for_slot('a')
    assert action.policy == rig.slot('a').policy
    assert rig.wait_for_decision(episode, moved=True).slot == 'a'
    # what was left of slot b's chunk is no business of slot a's policy
    cell.edge.wait(lambda: len(cell.prefixes('a')) >= 3, 'slot a is asked on')
    told = cell.prefixes('a')
    assert told[0] == 0
    assert max(told[1:]) > 0
    cell.assert_smooth()
    slots = [a.slot for a in cell.played]
    assert slots == sorted(slots, reverse=True), 'it went over once'
    assert {a.episode_id for a in cell.played} == {episode}


@pytest.mark.slow
@both_links
def test_a_router_that_is_killed_and_started_again_keeps_the_episode_in_its_slot(cell):
    rig = cell.router
    for name in ('a', 'b'):
        rig.server(name, name, options=LONG)
    slots = {'slot_a': ['a'], 'slot_b': ['b'], **QUICK}
    rig.router(split_percent=0, **slots)
    rig.wait_for_health('healthy')
    cell.start()
    episode = cell.wait_for_slot('b').episode_id
    before = {a.session_epoch for a in cell.played}
    rig.kill('router')
    rig.router(split_percent=100, **slots)
    cell.edge.wait(lambda: {a.session_epoch for a in cell.played} - before, 'motion resumes')
    cell.edge.wait_for_play()
    assert {(a.slot, a.episode_id) for a in cell.played} == {('b', episode)}
    assert EdgeState.DEAD not in {state.state for state in cell.edge.seen.states}
    assert not cell.router.steering('a').events('predict')
    cell.edge.trigger('reset')
    assert cell.wait_for_slot('a').episode_id != episode


@pytest.mark.slow
@both_links
@pytest.mark.parametrize('count', [1, 2])
def test_a_slot_whose_servers_swap_their_policy_one_by_one_is_not_felt(cell, count):
    rig = cell.router
    names = ('one', 'two')[:count]
    for name in names:
        rig.server(name, 'prod', policy='old', options=LONG, policy_root=str(rig.folder))
    rig.router(slot_prod=list(names), **QUICK)
    rig.wait_for_health('healthy')
    cell.start()
    cell.edge.wait(lambda: max(cell.prefixes('old')) > 0, 'real-time chunking is at work')
    old = rig.slot('prod').policy
    path = rig.steering('new').folder_path(chunk=210, rtc=1)
    for name in names:
        new = Swapper(cell.edge.node, f'/{name}/policy_server').run(path).policy
        cell.edge.wait_for_ticks()
        assert rig.state.health == 'healthy'
    cell.edge.wait(lambda: rig.slot('prod').policy == new, 'the slot has the new policy')
    cell.edge.wait(lambda: len(cell.prefixes('new')) >= 3, 'the new policy answers')
    cell.edge.wait(lambda: cell.played[-1].policy == new, 'its actions are played')
    cell.assert_smooth()
    policies = [a.policy for a in cell.played]
    assert policies == sorted(policies, key=[old, new].index), 'it went over once'
    assert cell.edge.seen.drops()['policy_changed'] == 1
    told = cell.prefixes('new')
    assert told[0] == 0
    assert max(told[1:]) > 0
    assert len({a.episode_id for a in cell.played}) == 1
    assert rig.drops().get('unanswered', 0) == 0
