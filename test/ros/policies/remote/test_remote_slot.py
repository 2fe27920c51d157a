# SPDX-License-Identifier: Apache-2.0
"""A slot whose policy runs in the server of another project, beside one of our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.nodes.router_rig import RouterRig
from support.policies.remote_peers import OpenpiPeer, Peer

from lerobot_serve.wire.schema import Flag, Status
from lerobot_serve_interfaces.msg import SlotState

JOINTS = [f'joint_{i}.pos' for i in range(6)]
CONTRACT = f"""
name: elsewhere
state_names: {JOINTS}
action_names: {JOINTS}
chunk_steps: 4
control_hz: 30
predict_timeout_s: 1
state: {{observation>arm: {JOINTS[:5]}, observation>gripper: {JOINTS[5:]}}}
actions: {{arm: {JOINTS[:5]}, hand: {JOINTS[5:]}}}
"""


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = OpenpiPeer()
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture
def router(router_rig: RouterRig, peer: Peer, tmp_path: Path) -> RouterRig:
    file = tmp_path / 'contract.yaml'
    file.write_text(CONTRACT)
    start = router_rig.fleet.start
    start(
        'a',
        'policy_server',
        namespace='/a',
        policy_kind='openpi',
        policy_path=f'{file},url={peer.url}',
        slot='a',
        status_period_s=0.1,
    )
    start(
        'b',
        'policy_server',
        namespace='/b',
        policy_kind='null',
        policy_path='joints=6,chunk=30,cameras=,fps=30',
        slot='b',
        status_period_s=0.1,
    )
    router_rig.router(slot_a=['a'], slot_b=['b'], reply_timeout_s=5.0, slot_unhealthy_threshold=2)
    router_rig.wait_for_health('healthy')
    return router_rig


def test_a_remote_slot_serves_fails_over_and_comes_back(router, peer):
    robot = router.robot()
    first, second = router.episode('a', salt=1), router.episode('a', salt=2)
    chunk = robot.round_trip(episode_id=first)
    assert (chunk.status, chunk.slot) == (Status.OK, 'a')
    assert chunk.policy.startswith('elsewhere@')
    state = np.linspace(-1, 1, 6, dtype=np.float32)
    ramp = np.arange(4, dtype=np.float32)[:, None] * [1, 1, 1, 1, 1, -1]
    assert np.allclose(chunk.robot, state + ramp)
    assert robot.round_trip(episode_id=router.episode('b')).policy.startswith('null@')

    # NaN is refused here, and never sent on
    peer.mode = 'nan'
    chunk = robot.round_trip(episode_id=second)
    assert (chunk.status, len(chunk.robot)) == (Status.NOT_FINITE, 0)
    peer.mode = 'ok'
    assert robot.round_trip(episode_id=second).status == Status.OK

    # the server of the others dies in the middle of an episode
    peer.stop()
    chunk = robot.round_trip(episode_id=first)
    assert (chunk.status, chunk.slot) == (Status.POLICY_ERROR, 'a')
    assert 'openpi server ws://' in chunk.status_text
    chunk = robot.round_trip(episode_id=first)
    assert (chunk.status, chunk.slot) == (Status.OK, 'b')
    router.wait_for_health('slot_a_drained')
    assert 'policy_error' in router.slot('a').text
    chunk = robot.round_trip(episode_id=first)
    assert (chunk.slot, chunk.header.flags & Flag.POLICY_CHANGED) == ('b', 0)

    peer.mode = 'ok'
    peer.start()

    # copies of what robots ask show that it is well
    def is_back() -> bool:
        robot.round_trip(episode_id=first)
        return router.slot('a').state == SlotState.HEALTHY

    router.wait(is_back, 'slot a is healthy')
    assert robot.round_trip(episode_id=router.episode('a', salt=99)).slot == 'a'
