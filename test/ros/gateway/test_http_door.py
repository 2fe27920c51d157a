# SPDX-License-Identifier: Apache-2.0
"""Programs over HTTP have sessions at a real router with real servers."""

from __future__ import annotations

import base64

import numpy as np
import pytest
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


def test_pictures_reach_a_policy_with_cameras(router_rig, doors):
    router_rig.fleet.start(
        'a',
        'policy_server',
        namespace='/a',
        policy_kind='null',
        policy_path='joints=6,chunk=30,cameras=front:48x64,fps=30',
    )
    rig = doors('http', server=SERVER)
    raw = base64.b64encode(bytes(48 * 64 * 3)).decode()
    given = {'episode_id': 'e', 'state': STATE, 'image': {'data': raw, 'shape': [48, 64, 3]}}
    status, content, _ = rig.act(given)
    assert status == 200, content
    status, content, _ = rig.act({'episode_id': 'e', 'state': STATE})
    assert status == 400 and 'front' in content['error']['text']
