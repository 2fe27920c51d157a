# SPDX-License-Identifier: Apache-2.0
"""
Unmodified clients of LeRobot and openpi drive the simulated arm, with its cameras, to the target
through gateway and router while v2 is in canary; their outcomes count, and the audit passes.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from support.gateway.peers import packages_of
from support.gateway.reach_scene import CALLERS_LIMIT, POLICIES, ReachCanary, results_in
from support.gateway.robot_clients import RobotClients
from support.gateway.sim_plugin import installed_plugin

from lerobot_serve.sim.arm import Arm
from lerobot_serve.sim.scene import AttemptResult, ReachScene

pytest.importorskip('torch', reason='the shipped policies run on torch')
pytestmark = pytest.mark.slow
LIMIT_S = 120.0
CONTROL_HZ, ACTIONS_PER_CHUNK = 30, 15
# v1 aims 17.5 mm beside each target; both versions end within 13 mm of the first one of this seed
SEED = 5
STATE_KEY = 'observation/state'
MAPPING = f"""
state: [{STATE_KEY}]
cameras:
  observation/image: observation.images.front
  observation/wrist_image: observation.images.wrist
"""


@pytest.fixture
def robots(tmp_path):
    pytest.importorskip('lerobot')
    clients = RobotClients(tmp_path, installed_plugin(tmp_path / 'plugin'))
    yield clients
    clients.end()


def robot_client(scene: ReachCanary, number: int) -> dict[str, Any]:
    """Return the configuration of a client with a simulated arm."""
    results = str(scene.rig.folder / f'results_{number}')
    return {
        'robot': {'type': 'reach_sim', 'id': 'arm', 'seed': SEED, 'results': results},
        'server_address': scene.address,
        'policy_type': 'act',
        'pretrained_name_or_path': 'act_so101',
        'actions_per_chunk': 30,
        'chunk_size_threshold': 0.5,
        'aggregate_fn_name': 'latest_only',
        'task': 'reach the target',
        'fps': CONTROL_HZ,
    }


def drive_a_robot_client(scene: ReachCanary, robots: RobotClients) -> str:
    """Start a client, wait until its arm was on the target, report it; return the slot."""
    known = len(scene.placements())
    results = scene.rig.folder / f'results_{robots.count}'
    number = robots.start(robot_client(scene, robots.count))
    first, *_ = scene.rig.wait(lambda: results_in(results), 'an attempt', LIMIT_S)
    assert json.loads(first)['success'], first
    ((caller, episode, slot),) = scene.rig.wait(
        lambda: scene.placements()[known:], 'its episode in the trace of the router'
    )
    assert caller.startswith('gateway/lerobot/127.0.0.1:')
    scene.report_success(episode, slot)
    robots.interrupt(number)
    return slot


def test_robot_clients_reach_the_target_while_v2_is_in_canary(router_rig, robots):
    scene = ReachCanary(router_rig, 'lerobot', policy_names="['*']")
    reached: set[str] = set()
    # a start of the client is an episode, and the split places it
    while reached != POLICIES.keys() and scene.callers < CALLERS_LIMIT:
        reached.add(drive_a_robot_client(scene, robots))
        scene.callers += 1
    scene.check_canary()
    scene.check_audit()


class OpenpiRobot:
    """The loop of a robot around openpi's client: a chunk, some of its actions, the next."""

    def __init__(self, address: str) -> None:
        from openpi_client.websocket_client_policy import WebsocketClientPolicy

        host, _, port = address.rpartition(':')
        self._client = WebsocketClientPolicy(host, int(port))
        self._scene = ReachScene(Arm(), np.random.default_rng(SEED))

    def attempt(self, name: str) -> tuple[AttemptResult, dict[str, Any]]:
        """Return the result, and what the gateway says of its last chunk."""
        while True:
            reply = self._client.infer(self._observation(name))
            for action in reply['actions'][:ACTIONS_PER_CHUNK]:
                self._scene.arm.step(action, 1 / CONTROL_HZ)
                if result := self._scene.step(1 / CONTROL_HZ):
                    return result, reply['lerobot_serve']

    def _observation(self, name: str) -> dict[str, Any]:
        return {
            STATE_KEY: self._scene.arm.positions,
            'observation/image': self._scene.render('front', 224, 224),
            'observation/wrist_image': self._scene.render('wrist', 224, 224),
            'prompt': 'reach the target',
            'session_id': name,
        }

    def close(self) -> None:
        self._client._ws.close()


def test_openpi_clients_reach_the_target_while_v2_is_in_canary(router_rig, tmp_path):
    mapping = tmp_path / 'mapping.yaml'
    mapping.write_text(MAPPING)
    with packages_of('openpi'):
        scene = ReachCanary(router_rig, 'openpi', mapping=mapping)
        for slot in POLICIES:
            robot = OpenpiRobot(scene.address)
            scene.callers += 1
            result, placed = robot.attempt(router_rig.episode(slot, owner='127.0.0.1/'))
            assert result.success, result
            assert placed['slot'] == slot
            scene.report_success(placed['episode_id'], slot)
            robot.close()
    scene.check_canary()
    scene.check_audit()
