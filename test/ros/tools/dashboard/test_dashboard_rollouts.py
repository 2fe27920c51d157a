# SPDX-License-Identifier: Apache-2.0
"""The dashboard with a real router: slots, rollouts, and a router that dies within a command."""

from __future__ import annotations

from collections.abc import Iterator
import json

import pytest
from support.nodes.dashboard_rig import DashboardRig, Viewer
from support.nodes.edge_rig import BUFFERED, EdgeRig
from support.nodes.router_rig import ROUTER, RouterRig

from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve_interfaces.msg import CanaryState, RouterState

# [steps] of the robot; more than a chunk of 60 and any action that may be played later has
LONGER_THAN_BUFFERS = 150
pytestmark = pytest.mark.long


@pytest.fixture
def robot(node, router_rig, tmp_path) -> Iterator[EdgeRig]:
    rigged = EdgeRig(node, router_rig.fleet, tmp_path)
    yield rigged
    rigged.end()


def two_slots(rig: RouterRig, **router: object) -> None:
    rig.server('a', 'a', 'v1')
    rig.server('b', 'b', 'v2')
    rig.router(slot_a=['a'], slot_b=['b'], split_percent=100, **router)
    rig.wait_for_health('healthy')


@pytest.mark.slow
def test_slots_and_split_are_set_with_the_name_of_the_person(router_rig, start_dashboard):
    two_slots(router_rig)
    dashboard = start_dashboard()
    viewer = dashboard.view()
    viewer.wait(lambda d: ROUTER in d['routers'], 'the router')
    # a router is not a server
    viewer.wait(lambda d: len(d['servers']) == 2 and ROUTER not in d['servers'], 'the servers')

    done = dashboard.does('split', ROUTER, percent=60)
    assert 'split to slot a: 100 % -> 60 %' in done['changes']
    done = dashboard.does('drain', ROUTER, slot='b', reason='GPU service')
    assert 'slot b: HEALTHY -> DRAINED' in done['changes']
    slot = viewer.wait(
        lambda d: (s := d['routers'][ROUTER]['slots']['b'])['state'] == 'DRAINED' and s, 'drained'
    )
    # the router keeps who it was, as with the verb
    assert done['by'] in slot['text'] and 'GPU service' in slot['text']
    viewer.wait_for_incident('slot', 'info', 'DRAINED')
    viewer.wait(lambda d: d['routers'][ROUTER]['decisions'], 'the decision')
    assert dashboard.does('restore', ROUTER, slot='b')['changes']


def test_a_rollout_is_shown_paused_and_rolled_back(router_rig, start_dashboard):
    two_slots(router_rig)
    dashboard = start_dashboard()
    viewer = dashboard.view()
    viewer.wait(lambda d: ROUTER in d['routers'], 'the router')
    router_rig.set(**{'canary.plan': ['50', '100']})

    def rollout(document):
        return document['routers'][ROUTER]['rollout']

    viewer.wait(lambda d: rollout(d)['state'] == 'RUNNING', 'it runs')
    viewer.wait(lambda d: rollout(d)['bars'] and '50' in rollout(d)['plan'], 'bars and plan')
    assert viewer.document['routers'][ROUTER]['actions']['pause']['effect'] == 'do'
    dashboard.does('rollout pause', ROUTER, reason='lunch')
    viewer.wait(lambda d: rollout(d)['state'] == 'PAUSED', 'it is paused')
    dashboard.does('rollout abort', ROUTER)
    viewer.wait(lambda d: rollout(d)['state'] == 'ROLLED_BACK', 'it is rolled back')
    number = (
        next(
            key for key, each in viewer.document['incidents'].items() if each['kind'] == 'rollback'
        )
        if viewer.wait_for_incident('rollback', 'error')
        else ''
    )
    detail = json.loads(dashboard.get(f'/api/incidents?id={number}')[1])
    assert detail['id'] == number and '--trace-folder' in detail['explanation']
    history = json.loads(dashboard.get(f'/api/routers/history?router=%2F{ROUTER[1:]}')[1])
    assert history['t_ms'] and history['promote_at'] > 0
    assert len({len(history[key]) for key in ('t_ms', 'not_worse', 'worse')}) == 1


@pytest.mark.slow
def test_a_router_that_hangs_within_a_command_gives_504_with_what_is_known(
    router_rig, start_dashboard, monkeypatch
):
    two_slots(router_rig)
    dashboard = start_dashboard()
    dashboard.view().wait(lambda d: ROUTER in d['routers'], 'the router')
    status, shown = dashboard.command('drain', ROUTER, slot='b')
    assert status == 200
    control = FleetClient.control_slot

    def hang_first(self, *given, **named):
        router_rig.hang('router')
        return control(self, *given, **named)

    monkeypatch.setattr(FleetClient, 'control_slot', hang_first)
    try:
        status, reply = dashboard.command('drain', ROUTER, slot='b', confirm=shown['text'])
    finally:
        router_rig.go_on('router')
    assert status == 504, reply
    assert 'UNKNOWN' in reply['error'] and 'Last known' in reply['error']


def loading_ends(viewer: Viewer, number: int) -> dict:
    """Return what the page shows of a load at its end."""

    def ended(document: dict) -> dict | None:
        found = document['routers'][ROUTER].get('loading', {'number': 0})
        return found if found['number'] == number and found['state'] != 'runs' else None

    return viewer.wait(ended, 'the end of the load')


@pytest.mark.slow
def test_a_rollout_begins_and_ends_on_the_page_and_no_robot_stalls(
    router_rig: RouterRig, robot: EdgeRig, start_dashboard
):
    root = {'policy_root': str(router_rig.folder), 'options': '&chunk=60'}
    for name in ('a1', 'a2'):
        router_rig.server(name, 'a', 'v1', **root)
    router_rig.server('b', 'b', 'v2', **root)
    router_rig.router(slot_a=['a1', 'a2'], slot_b=['b'], split_percent=100)
    router_rig.wait_for_health('healthy')
    dashboard: DashboardRig = start_dashboard()
    viewer = dashboard.view()
    viewer.wait(lambda d: ROUTER in d['routers'], 'the router')

    status, refused = dashboard.command('rollout finish', ROUTER)
    assert status == 200 and refused['effect'] == 'refuse'
    assert 'no policy is promoted' in refused['text']
    begun = dashboard.begins('rollout start', ROUTER, plan='50,100', reason='better')
    assert loading_ends(viewer, begun['number'])['state'] == 'done'
    router_rig.wait(
        lambda: router_rig.watch.last[CanaryState].state == CanaryState.RUNNING, 'the first step'
    )
    dashboard.does('rollout promote', ROUTER)
    robot.start(servers=[ROUTER], **BUFFERED)
    robot.wait_for_play()
    assert robot.seen.last.slot == 'b'
    stalls = robot.seen.last.stalls

    gate, loads = router_rig.steering('v2').loads, router_rig.steering('v2').events
    before = len(loads('load'))
    gate.close_gate()
    finish = dashboard.begins('rollout finish', ROUTER, reason='seen enough')
    router_rig.wait(lambda: len(loads('load')) > before, 'a server of slot a loads v2')
    # it serves nothing, for longer than the robot could go on alone
    robot.wait_for_ticks(LONGER_THAN_BUFFERS)
    status, busy = dashboard.command('split', ROUTER, percent=50, confirm='again')
    assert status == 409 and 'another command runs' in busy['error']
    viewer.wait(
        lambda d: d['routers'][ROUTER]['loading']['text'].startswith('/a1/policy_server: load'),
        'the step that runs',
    )
    gate.open_gate()
    end = loading_ends(viewer, finish['number'])
    assert end['state'] == 'done', end
    assert end['by'].endswith('(dashboard)') and 'split to slot a: 0 % -> 100 %' in end['changes']
    assert {slot.policy for slot in router_rig.watch.last[RouterState].slots} == {
        router_rig.slot('b').policy
    }
    assert robot.seen.last.stalls == stalls
    robot.trigger('reset')
    robot.wait(lambda: robot.seen.last.slot == 'a', 'the next episode is in slot a')
    robot.wait_for_play()


@pytest.mark.slow
def test_a_load_that_fails_is_shown_with_what_each_server_serves(
    router_rig: RouterRig, start_dashboard
):
    two_slots(router_rig)
    dashboard = start_dashboard()
    viewer = dashboard.view()
    viewer.wait(lambda d: ROUTER in d['routers'], 'the router')
    # the servers have no policy_root
    begun = dashboard.begins('rollout start', ROUTER, policy='/models/v3')
    end = loading_ends(viewer, begun['number'])
    assert end['state'] == 'failed' and 'has no policy_root' in end['text']
    assert 'Nothing was changed' in end['text']
    # the router takes the next command
    assert dashboard.does('split', ROUTER, percent=60)['changes']
