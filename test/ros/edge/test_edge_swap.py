# SPDX-License-Identifier: Apache-2.0
"""A robot plays while its server swaps the policy: the arm never waits, no prefix goes over."""

from __future__ import annotations

import pytest
from support.nodes.edge_rig import BUFFERED
from support.nodes.steering import Steering
from support.nodes.swapping import Swapper
from support.nodes.zenoh_links import both_links

from lerobot_serve_interfaces.msg import EdgeState

# four seconds a chunk
ROWS = 120
PATIENT = {**BUFFERED, 'request_threshold_s': 2.5, 'request_timeout_s': 10.0}


@pytest.fixture
def new(tmp_path):
    made = Steering(tmp_path / 'new')
    yield made
    made.open_gates()
    made.end()


@both_links
@pytest.mark.parametrize('rtc', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_swap_is_not_felt(edge_rig, steering, new, node, tmp_path, rtc):
    path = steering.path(chunk=ROWS, rtc=1)
    edge_rig.start_server(policy_kind='steered', policy_path=path, policy_root=str(tmp_path))
    edge_rig.start(rtc=rtc, **PATIENT)
    seen, swapper = edge_rig.seen, Swapper(node)
    edge_rig.wait(lambda: len(steering.events('predict')) >= 2, 'it is at work')
    before, drops = seen.last.policy, seen.drops()

    status = swapper.run(new.folder_path(chunk=ROWS, rtc=1))
    edge_rig.wait(lambda: len(new.events('predict')) >= 4, 'the new policy answers')
    edge_rig.wait(lambda: seen.last.policy == status.policy != before, 'its actions are played')
    edge_rig.wait_for_play(60)

    assert seen.last.stalls == 0
    assert seen.rungs == {EdgeState.RUNG_POLICY}
    played = seen.played
    # within one session and one episode; every step was commanded
    assert len({(a.session_epoch, a.episode_id) for a in played}) == 1
    policies = [a.policy for a in played]
    assert policies == sorted(policies, key=[before, status.policy].index), 'it went over once'
    assert seen.drops()['policy_changed'] == 1
    for name in ('foreign_policy', 'no_session', 'late_chunk'):
        assert seen.drops().get(name) == drops.get(name), name
    prefixes = [int(event.split()[1]) for event in new.events('prefix')]
    assert prefixes[0] == 0, 'the prefix was of the old policy'
    assert all(prefixes[1:]) if rtc else not any(prefixes)
