# SPDX-License-Identifier: Apache-2.0
"""The dashboard with a real router: slots, rollouts, and a router that dies within a command."""

from __future__ import annotations

import json

from support.nodes.router_rig import ROUTER, RouterRig


def two_slots(rig: RouterRig, **router: object) -> None:
    rig.server('a', 'a', 'v1')
    rig.server('b', 'b', 'v2')
    rig.router(slot_a=['a'], slot_b=['b'], split_percent=100, **router)
    rig.wait_for_health('healthy')


def test_slots_and_split_are_set_with_the_name_of_the_person(router_rig, start_dashboard):
    two_slots(router_rig)
    dashboard = start_dashboard()
    viewer = dashboard.view()
    viewer.wait(lambda d: ROUTER in d['routers'], 'the router')
    # a router is no server
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

    viewer.wait(lambda d: rollout(d)['phase'] == 'RUNNING', 'it runs')
    viewer.wait(lambda d: rollout(d)['bars'] and '50' in rollout(d)['plan'], 'bars and plan')
    assert viewer.document['routers'][ROUTER]['actions']['pause']['effect'] == 'do'
    dashboard.does('rollout pause', ROUTER, reason='lunch')
    viewer.wait(lambda d: rollout(d)['phase'] == 'PAUSED', 'it is paused')
    dashboard.does('rollout abort', ROUTER)
    viewer.wait(lambda d: rollout(d)['phase'] == 'ROLLED_BACK', 'it is rolled back')
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


def test_a_router_that_hangs_within_a_command_gives_504_with_what_is_known(
    router_rig, start_dashboard
):
    two_slots(router_rig)
    dashboard = start_dashboard()
    dashboard.view().wait(lambda d: ROUTER in d['routers'], 'the router')
    status, shown = dashboard.command('drain', ROUTER, slot='b')
    assert status == 200
    client = type(dashboard.node._open_client(''))
    control = client.control_slot

    def hang_first(self, *given, **named):
        router_rig.hang('router')
        return control(self, *given, **named)

    client.control_slot = hang_first
    try:
        status, reply = dashboard.command('drain', ROUTER, slot='b', confirm=shown['text'])
    finally:
        client.control_slot = control
        router_rig.go_on('router')
    assert status == 504, reply
    assert 'UNKNOWN' in reply['error'] and 'Last known' in reply['error']
