# SPDX-License-Identifier: Apache-2.0
"""Programs over HTTP have sessions at a real router with real servers."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from support.gateway.doors_rig import start_with_camera
from support.nodes.zenoh_links import both_links

from lerobot_serve.gateway.callers.episode_names import scoped_name

SERVER = '/a/policy_server'
STATE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


@pytest.mark.slow
@both_links
def test_each_episode_keeps_its_slot_and_says_it(router_rig, doors):
    router_rig.slots(split_percent=50)
    rig = doors('http')
    names = {slot: router_rig.episode(slot, owner='127.0.0.1/') for slot in ('a', 'b')}
    for _ in range(2):
        for slot, episode_id in names.items():
            status, content, headers = rig.act({'episode_id': episode_id, 'state': STATE})
            assert status == 200, content
            assert np.asarray(content['actions']).shape == (30, 6)
            assert content['actions'][0] == pytest.approx(STATE)
            assert content['routing'] == {
                'slot': slot,
                'routing_key': scoped_name('127.0.0.1/', episode_id),
                'degraded': False,
            }
            assert headers['X-Reflex-Policy-Slot'] == slot
            assert headers['X-Reflex-Model-Version'].startswith('steered@')
    assert rig.counters.requests == {('http', 'ok'): 4}
    router_rig.wait(lambda: router_rig.state.sessions == 2, 'a session for each episode')


def test_what_goes_wrong_at_the_server_has_its_status(router_rig, doors):
    router_rig.server('a', 'prod')
    rig = doors('http', server=SERVER)
    for task, expected, text in (('nan', 502, 'NaN'), ('raise', 502, 'raised on purpose')):
        status, content, _ = rig.act({'episode_id': 'e', 'state': STATE, 'task': task})
        assert status == expected and text in content['error']['text']
    steering = router_rig.steering('a')
    steering.turns.close_gate()
    asked = {'episode_id': 'e', 'state': STATE, 'timeout_s': 0.2}
    assert rig.act(asked)[0] == 504
    steering.turns.open_gate()
    router_rig.kill('a')
    router_rig.wait(lambda: rig.node._why_not_ready(), 'the gateway is not ready')
    status, content, headers = rig.act({'episode_id': 'e', 'state': STATE})
    assert status == 503 and int(headers['Retry-After']) >= 1, content


def test_pictures_reach_a_policy_with_cameras(router_rig, doors):
    start_with_camera(router_rig)
    rig = doors('http', server=SERVER)
    raw = base64.b64encode(bytes(48 * 64 * 3)).decode()
    given = {'episode_id': 'e', 'state': STATE, 'image': {'data': raw, 'shape': [48, 64, 3]}}
    status, content, _ = rig.act(given)
    assert status == 200, content
    status, content, _ = rig.act({'episode_id': 'e', 'state': STATE})
    assert status == 400 and 'front' in content['error']['text']
