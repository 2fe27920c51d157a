# SPDX-License-Identifier: Apache-2.0
"""A remote policy of each kind behind the door of its protocol: a router of routers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gateway.gateway_rig import CAMERA, DoorRig
import yaml

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.door_parameters import EndpointSettings
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
BY_NAME = {'state': {name: [name] for name in NAMES}}
# kind, which is the name of its door -> further fields, a field that is not that of the policy,
# and why the file is refused with it
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    'http': ({}, {'control_hz': 20}, 'the server reports'),
    'openpi': (BY_NAME, {'control_hz': 20}, 'the server reports'),
    'groot': (
        {**BY_NAME, 'images': {'front': CAMERA}, 'task': 'annotation.human.task_description'},
        {'chunk_steps': 3},
        'chunk_steps of the contract file is 3',
    ),
}


@pytest.mark.parametrize('kind', KINDS)
async def test_its_chunks_are_those_of_the_router(tmp_path: Path, kind):
    fields, wrong, refusal = KINDS[kind]

    def ask(url: str, **changes: object) -> np.ndarray:
        file = tmp_path / 'contract.yaml'
        file.write_text(yaml.safe_dump({**CONTRACT, **fields, 'url': url, **changes}))
        policy = registry.load(kind, LoadOptions(str(file)))
        frames = (np.zeros((48, 64, 3), np.uint8),)
        state = np.array([[4, 5, 6]], np.float32)
        try:
            (prediction,) = policy.predict([PolicyRequest('robot', state, {CAMERA: frames})])
        finally:
            policy.close()
        return prediction.robot

    rig = DoorRig()
    rig.door = load_door(kind)(rig.gateway, Exposure(kind), EndpointSettings())
    async with rig.running():
        robot = await asyncio.to_thread(ask, rig.door.address)
        assert robot.tolist() == [[4 + i, 5 + i, 6 + i] for i in range(4)]
        # what the gateway says of the policy is compared with the contract file
        with pytest.raises(PolicyError, match=refusal):
            await asyncio.to_thread(ask, rig.door.address, **wrong)
