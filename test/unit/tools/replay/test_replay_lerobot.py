# SPDX-License-Identifier: Apache-2.0
"""A recording of a LeRobot policy is asked again without saying what its files do not hold."""

from __future__ import annotations

import json

import pytest

pytest.importorskip('lerobot', reason='LeRobot is not installed (TORCH=none)')

import numpy as np
from support.policies.lerobot_rig import folder_of, NAMES
from support.policies.tiny_policies import CAMERAS, HEIGHT, WIDTH
from support.tools.replay_rig import answered, record

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import Flag, MsgType
from lerobot_serve.tools.cli.main import main

BLACK = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
IMAGES = tuple(
    Image(f'observation.images.{name}', HEIGHT, WIDTH, BLACK) for name in CAMERAS['act']
)


def request(seq: int) -> bytes:
    header = Header(seq, seq, 1, 0, 1, MsgType.OBSERVATION, Flag.NONE)
    state = np.full((1, len(NAMES)), seq / 10, np.float32)
    return wire_observation.encode(Observation(header, 'robot_1', 'episode', state, IMAGES))


def test_names_and_rate_are_not_asked_for(tmp_path, capsys):
    said = {'state_names': NAMES, 'action_names': NAMES, 'trained_fps': 30.0, 'cpu_threads': 1}
    folder = str(folder_of('act'))
    requests = [request(1), request(2)]
    bag = record(tmp_path, answered(requests, 'lerobot', folder, **said))
    words = ['replay', str(bag), '--kind', 'lerobot', '--policy', folder, '--json']
    status = main([*words, '--parameter', 'cpu_threads=1'])
    found = json.loads(capsys.readouterr().out)
    assert status == 0, found
    assert str(found).count('identical')
