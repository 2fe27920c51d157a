# SPDX-License-Identifier: Apache-2.0
"""A policy of the kinds `http` and `openpi` behind the doors of a gateway: a router of routers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from support.gateway.gateway_rig import CAMERA, GatewayRig
import yaml

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.doors import load_door
from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyError, PolicyRequest

NAMES = ['joint_1.pos', 'joint_2.pos', 'gripper.pos']
CONTRACT = {
    'name': 'behind_a_gateway',
    'state_names': NAMES,
    'action_names': NAMES,
    'cameras': {CAMERA: {'height': 48, 'width': 64}},
    'chunk_steps': 4,
    'control_hz': 30,
}
KEYS = {
    'http': {},
    'openpi': {'state': {name: [name] for name in NAMES}},
}


@pytest.mark.parametrize('kind', KEYS)
async def test_its_chunks_are_those_of_the_router(tmp_path: Path, kind):
    def ask(url: str, **changes: object) -> np.ndarray:
        file = tmp_path / 'contract.yaml'
        file.write_text(yaml.safe_dump({**CONTRACT, **KEYS[kind], 'url': url, **changes}))
        policy = registry.load(kind, LoadOptions(str(file)))
        frames = (np.zeros((48, 64, 3), np.uint8),)
        state = np.array([[4, 5, 6]], np.float32)
        try:
            (prediction,) = policy.predict([PolicyRequest('robot', state, {CAMERA: frames})])
        finally:
            policy.close()
        return prediction.robot

    rig = GatewayRig()
    door = load_door(kind)(rig.gateway, Exposure(kind), {})
    await door.start()
    try:
        robot = await asyncio.to_thread(ask, door.address)
        assert robot.tolist() == [[4 + i, 5 + i, 6 + i] for i in range(4)]
        # what the gateway says of the policy is compared with the contract file
        with pytest.raises(PolicyError, match='the server reports'):
            await asyncio.to_thread(ask, door.address, control_hz=20)
    finally:
        await door.stop()
        await rig.gateway.drain()
