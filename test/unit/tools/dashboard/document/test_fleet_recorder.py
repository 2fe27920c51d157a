# SPDX-License-Identifier: Apache-2.0
"""What the recorder of the dashboard makes of sources that come, fall silent and go."""

from __future__ import annotations

import pytest
from support.tools.operator_states import (
    canary_of,
    changed,
    learner_of,
    robot_of,
    router_of,
    server_of,
    slot_of,
)

from lerobot_serve.contract.records import EdgeState
from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.dashboard.document.fleet_document import FleetDocument
from lerobot_serve.tools.dashboard.document.fleet_recorder import (
    FleetRecorder,
    LEARNER,
    NOISY_PERIOD_S,
    ROBOT,
    ROUTER,
    SERVER,
    SETTLED_S,
)
from lerobot_serve.tools.dashboard.document.rows import FIRST_RANK, learner_row
from lerobot_serve.tools.operate.commands import robot_rule
from lerobot_serve.tools.operate.fleet_state import RobotView
from lerobot_serve.tools.operate.rule import Effect, RobotVerb

NODE, NODE_OF_ROUTER, NODE_OF_SERVER = '/robot_7/edge_controller', '/policy_router', '/a1/server'
PLAYS = robot_of(NODE, 'robot_7', 'STREAMING', server=NODE_OF_ROUTER, episode_id='e1')
SETTINGS = RouterParameters(canary_plan=('25', '100'))


class Recorded:
    """A recorder, and the document that viewers have."""

    def __init__(self) -> None:
        self.document = FleetDocument({}, 0)
        self.recorder = FleetRecorder(self.document, lambda: '03:00:00', lambda: 'then')

    def rows(self, section: str) -> dict:
        self.recorder.turn(1e6, 0)
        return self.document.newest[section]

    def texts(self) -> list[str]:
        return [row['text'] for row in self.rows('incidents').values()]

    def robot(self, view: RobotView = PLAYS, now_s: float = 0.0, **numbers: float) -> None:
        self.recorder.on_robot(changed(view, **numbers), 0.8, now_s)

    def router(self, phase=CanaryPhase.RUNNING, now_s: float = 0.0) -> None:
        slots = (slot_of('a', policy='v1@1'), slot_of('b', policy='v2@2'))
        view = router_of(NODE_OF_ROUTER, slots=slots, canary=canary_of(phase))
        self.recorder.on_router(view, SETTINGS, None, now_s)

    def silent(self, kind: str = ROBOT, node: str = NODE, *, has_publisher: bool = False) -> None:
        self.recorder.on_silent(kind, node, last_s=1.0, has_publisher=has_publisher, now_s=9.0)


@pytest.fixture
def seen() -> Recorded:
    return Recorded()


def test_a_silent_robot_is_marked_and_only_a_pause_is_planned_for_it(seen):
    seen.robot()
    assert seen.recorder.robot(NODE) == PLAYS
    seen.silent()
    row = seen.rows(ROBOT)[NODE]
    assert row['silent_since_ms'] == 1000
    found = {verb: robot_rule(verb, seen.recorder.robot(NODE)) for verb in RobotVerb}
    tried = [verb for verb, rule in found.items() if rule.effect is Effect.DO]
    assert tried == [RobotVerb.PAUSE] and 'is silent' in found[RobotVerb.RESUME].text
    seen.silent()
    assert len(seen.texts()) == 1 and 'process ended' in seen.texts()[0]

    seen.robot(now_s=10.0)
    assert 'silent_since_ms' not in seen.rows(ROBOT)[NODE]
    assert seen.recorder.robot(NODE) == PLAYS
    assert sorted('again' in text for text in seen.texts()) == [False, True]


def test_a_robot_that_is_back_as_it_was_loses_its_mark_at_once(seen):
    seen.robot(queue_remaining_s=0.5)
    seen.silent()
    # before its numbers are due
    seen.robot(now_s=NOISY_PERIOD_S / 2, queue_remaining_s=0.6)
    assert 'silent_since_ms' not in seen.rows(ROBOT)[NODE]


@pytest.mark.parametrize('has_publisher', [False, True])
def test_a_silent_router_says_whether_it_hangs(seen, has_publisher):
    seen.router()
    seen.silent(ROUTER, NODE_OF_ROUTER, has_publisher=has_publisher)
    assert ('it hangs' in seen.texts()[0]) == has_publisher
    with pytest.raises(UserError, match='is silent'):
        seen.recorder.router(NODE_OF_ROUTER)


def test_what_was_forgotten_is_no_target_and_comes_back_as_new(seen):
    seen.robot()
    seen.router()
    seen.recorder.on_server(NODE_OF_SERVER, server_of('', 'ACTIVE'), 0.0)
    for kind, node in ((ROBOT, NODE), (ROUTER, NODE_OF_ROUTER), (SERVER, NODE_OF_SERVER)):
        seen.silent(kind, node)
        assert node in seen.rows(kind)
        seen.recorder.forget(kind, node)
        assert node not in seen.rows(kind)
    for ask in (seen.recorder.robot, seen.recorder.router):
        with pytest.raises(UserError, match='is heard of'):
            ask(NODE)
    assert seen.recorder.plan(NODE_OF_ROUTER) is None
    count = len(seen.texts())
    seen.robot(changed(PLAYS, state='STALLED'), now_s=700.0)
    # nothing of it is known, so nothing has changed
    assert len(seen.texts()) == count and seen.rows(ROBOT)[NODE]['state'] == 'STALLED'


def test_numbers_alone_change_a_row_once_a_period(seen):
    seen.robot(queue_remaining_s=0.5)
    first = seen.rows(ROBOT)[NODE]
    seen.robot(now_s=NOISY_PERIOD_S / 2, queue_remaining_s=0.7)
    assert seen.rows(ROBOT)[NODE] == first
    seen.robot(now_s=NOISY_PERIOD_S, queue_remaining_s=0.7)
    assert seen.rows(ROBOT)[NODE] != first


@pytest.mark.parametrize('state', range(256))
def test_a_robot_in_any_state_has_a_rank(seen, state):
    seen.robot(changed(PLAYS, state=EdgeState.State(state)))
    row = seen.rows(ROBOT)[NODE]
    assert row['rank'] >= FIRST_RANK
    if state not in tuple(EdgeState.State):
        assert row['state'] == f'unknown ({state})'


def test_a_stall_of_a_robot_is_an_incident_once_its_episode_has_settled(seen):
    seen.robot()
    seen.robot(changed(PLAYS, state='STALLED', stalls=1), now_s=SETTLED_S + 1)
    rows = list(seen.rows('incidents').values())
    assert len(rows) == 1 and rows[0]['who'] == 'robot_7'
    assert seen.recorder.incident_place(next(iter(seen.rows('incidents')))) is not None
    assert seen.recorder.incident_place('99') is None


def test_an_episode_leads_to_its_router(seen):
    seen.robot()
    seen.router()
    assert seen.recorder.router_of_episode('e1') == NODE_OF_ROUTER
    # the same one over the other link
    seen.robot(changed(PLAYS, server=f'zenoh:{NODE_OF_ROUTER}', episode_id='e0'))
    assert seen.recorder.router_of_episode('e0') == NODE_OF_ROUTER
    with pytest.raises(UserError, match='episode'):
        seen.recorder.router_of_episode('e2')
    for number in range(500):
        seen.robot(changed(PLAYS, episode_id=f'e{number}'), now_s=float(number))
    assert len(seen.recorder._placed) < 500


def test_a_router_has_its_plan_and_a_phase_of_a_newer_version_is_shown(seen):
    seen.router()
    assert seen.recorder.plan(NODE_OF_ROUTER) == SETTINGS.plan
    seen.router(CanaryPhase(99), 1.0)
    row = seen.rows(ROUTER)[NODE_OF_ROUTER]
    assert row['rollout']['state'] == CanaryPhase(99).name
    assert {each['effect'] for each in row['actions'].values()} == {'refuse'}
    assert seen.recorder.evidence(NODE_OF_ROUTER) and seen.recorder.evidence('x') is None


def test_a_learner_comes_falls_silent_comes_back_and_is_forgotten(seen):
    trains = learner_of('/learner', 'TRAINING', round=3, progress=0.4, loss=0.1)
    assert seen.rows(LEARNER) == {}
    seen.recorder.on_learner(trains, 0.0)
    assert seen.rows(LEARNER) == {'/learner': learner_row(trains)}
    seen.silent(LEARNER, '/learner', has_publisher=True)
    assert seen.rows(LEARNER)['/learner']['silent_since_ms'] == 1000
    assert seen.texts() == ['the learner is silent: it hangs, or its link is down']
    seen.recorder.on_learner(trains, 10.0)
    assert seen.rows(LEARNER) == {'/learner': learner_row(trains)}
    assert any('the learner is heard of again' in text for text in seen.texts())
    seen.recorder.forget(LEARNER, '/learner')
    assert seen.rows(LEARNER) == {}
