# SPDX-License-Identifier: Apache-2.0
"""Slots whose policies run in servers of other projects, which fail in the ways of servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.nodes.router_rig import RouterRig
from support.nodes.small_client import SmallClient
from support.policies.remote_peers import CONTRACTS, modality, Peer, PEERS
import yaml

from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve_interfaces.msg import SlotState

NAMES = ('a', 'b', 'c')
STATE = np.array([[1, 2, 3]], np.float32)
EXPECTED = [[1 + step, 2 + step, 3 - step] for step in range(4)]
PREDICT_TIMEOUT_S = 1.0


@pytest.fixture(params=PEERS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == 'lerobot_async':
        pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    return request.param


@pytest.fixture
def peers(kind: str) -> Iterator[dict[str, Peer]]:
    """The server behind the policy of each slot."""
    started = {slot: PEERS[kind]() for slot in 'ab'}
    for peer in started.values():
        if 'video' in peer.metadata:
            peer.metadata['video'] = modality([], [0])
        peer.start()
    yield started
    for peer in started.values():
        peer.stop()


def contract(kind: str, name: str) -> str:
    """Return the file of a policy without cameras."""
    values = yaml.safe_load(CONTRACTS[kind])
    for key in ('cameras', 'images'):
        values.pop(key, None)
    changes = {'name': name, 'predict_timeout_s': PREDICT_TIMEOUT_S}
    return yaml.safe_dump(values | changes)


@pytest.fixture
def router(router_rig: RouterRig, kind: str, peers: dict[str, Peer], tmp_path: Path) -> RouterRig:
    for slot, peer in peers.items():
        file = tmp_path / f'{slot}.yaml'
        file.write_text(contract(kind, f'policy_{slot}'))
        router_rig.fleet.start(
            slot,
            'policy_server',
            namespace=f'/{slot}',
            policy_kind=kind,
            policy_path=f'{file},url={peer.url}',
            slot=slot,
            status_period_s=0.1,
        )
    router_rig.router(slot_a=['a'], slot_b=['b'], reply_timeout_s=5.0, slot_unhealthy_threshold=2)
    router_rig.wait_for_health('healthy')
    return router_rig


class Robot:
    """Sends the same state in each of its episodes."""

    def __init__(self, router: RouterRig) -> None:
        self._client: SmallClient = router.robot(state_names=NAMES, action_names=NAMES)

    def chunk(self, episode_id: str):
        return self._client.round_trip(episode_id=episode_id, state=STATE)

    def plays(self, episode_id: str, slot: str) -> None:
        """Fail unless the policy of a slot answers what its server predicts."""
        chunk = self.chunk(episode_id)
        assert (chunk.status, chunk.slot) == (Status.OK, slot), chunk.status_text
        assert chunk.policy.startswith(f'policy_{slot}@')
        assert chunk.robot.tolist() == EXPECTED


def wait_until_back(router: RouterRig, robot: Robot, episode_id: str) -> None:
    """Wait until copies of requests have shown that slot a is well."""

    def is_back() -> bool:
        robot.chunk(episode_id)
        return router.slot('a').state == SlotState.HEALTHY

    router.wait(is_back, 'slot a is healthy')


@pytest.mark.slow
def test_a_remote_slot_serves_fails_over_and_comes_back(router, kind, peers):
    robot, peer = Robot(router), peers['a']
    first, second, third = (router.episode('a', salt=number) for number in range(3))
    robot.plays(first, 'a')
    robot.plays(router.episode('b'), 'b')

    # NaN is refused here, and never sent on
    peer.mode = 'nan'
    chunk = robot.chunk(second)
    assert (chunk.status, len(chunk.robot)) == (Status.NOT_FINITE, 0)
    peer.mode = 'ok'
    robot.plays(second, 'a')

    # the server of the others takes the request and is silent
    peer.mode = 'hang'
    chunk = robot.chunk(first)
    assert (chunk.status, chunk.slot) == (Status.POLICY_ERROR, 'a')
    assert f'{kind} server {peer.url}' in chunk.status_text
    robot.plays(first, 'b')
    router.wait_for_health('slot_a_drained')
    assert 'policy_error' in router.slot('a').text
    # one that hangs is ended by its operator
    peer.stop()
    assert robot.chunk(first).header.flags & Flag.POLICY_CHANGED == 0
    peer.mode = 'ok'
    peer.start()
    wait_until_back(router, robot, first)

    # it dies in the middle of an episode
    robot.plays(third, 'a')
    peer.stop()
    chunk = robot.chunk(third)
    assert (chunk.status, chunk.slot) == (Status.POLICY_ERROR, 'a')
    assert f'{kind} server {peer.url}' in chunk.status_text
    robot.plays(third, 'b')
    router.wait_for_health('slot_a_drained')
    peer.start()
    wait_until_back(router, robot, third)
    robot.plays(router.episode('a', salt='last'), 'a')
