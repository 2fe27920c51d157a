# SPDX-License-Identifier: Apache-2.0
"""Names of callers reach the names of the policy; what has no partner is refused with its name."""

from __future__ import annotations

import numpy as np
import pytest
from support.gateway.gateway_rig import CAMERA

from lerobot_serve.errors import UserError
from lerobot_serve.files.load import load
from lerobot_serve.gateway.callers.mapping import (
    EQUAL_NAMES,
    flat_state,
    MappingFile,
    NameMapping,
    read_mapping,
)
from lerobot_serve.gateway.callers.predictions import PredictionError
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT

FRAME = np.zeros((2, 2, 3), np.uint8)
JOINTS = ('joint_1.pos', 'joint_2.pos')
STATE = {'gripper.pos': 3.0, 'joint_2.pos': 2.0, 'joint_1.pos': 1.0}
FILE = """
cameras: {observation/image: observation.images.front, observation/depth: null}
state: [observation/joint_position, observation/gripper_position]
actions:
  gripper: gripper.pos
  arm: [joint_1.pos, joint_2.pos]
"""


@pytest.fixture
def mapping(tmp_path) -> NameMapping:
    path = tmp_path / 'mapping.yaml'
    path.write_text(FILE)
    return read_mapping(str(path))


def test_equal_names_need_no_file_and_no_order():
    assert read_mapping('') is EQUAL_NAMES
    assert EQUAL_NAMES.state_vector(STATE, EXAMPLE_CONTRACT).tolist() == [1, 2, 3]
    assert EQUAL_NAMES.action_columns(EXAMPLE_CONTRACT) == {'actions': [0, 1, 2]}
    for name in (CAMERA, 'front'):
        assert list(EQUAL_NAMES.images({name: FRAME}, EXAMPLE_CONTRACT)) == [CAMERA]


def test_a_file_maps_cameras_state_and_actions(mapping):
    found = {'observation/image': FRAME, 'observation/depth': FRAME}
    assert list(mapping.images(found, EXAMPLE_CONTRACT)) == [CAMERA]
    state = {
        'observation/gripper_position': np.float32([[9]]),
        'observation/joint_position': [1, 2],
        'prompt': 'not read',
    }
    assert mapping.state_vector(state, EXAMPLE_CONTRACT).tolist() == [1, 2, 9]
    columns = mapping.action_columns(EXAMPLE_CONTRACT)
    assert list(columns.items()) == [('gripper', [2]), ('arm', [0, 1])]


@pytest.mark.parametrize(
    ('images', 'text'),
    [
        ({}, f'needs the cameras {CAMERA}, got none'),
        ({'side': FRAME}, f"no camera 'side', only {CAMERA}"),
        ({CAMERA: FRAME, 'front': FRAME}, f'two cameras are {CAMERA}'),
    ],
)
def test_a_camera_without_a_partner_is_refused(images, text):
    with pytest.raises(PredictionError, match=text):
        EQUAL_NAMES.images(images, EXAMPLE_CONTRACT)


@pytest.mark.parametrize(
    ('state', 'text'),
    [
        ({}, 'the state lacks joint_1.pos, joint_2.pos, gripper.pos, got no numbers;'),
        ({'joint_1.pos': 1}, 'the state lacks joint_2.pos, gripper.pos, got joint_1.pos'),
        ({**STATE, 'wrist.pos': 1}, 'no state wrist.pos, only joint_1.pos'),
        ({**STATE, 'joint_1.pos': [1, 2]}, 'state has 4 values, the policy takes 3'),
        ({**STATE, 'joint_1.pos': 'x'}, 'state joint_1.pos must be numbers'),
    ],
)
def test_a_state_without_a_partner_is_refused(state, text):
    with pytest.raises(PredictionError, match=text):
        EQUAL_NAMES.state_vector(state, EXAMPLE_CONTRACT)


def test_values_without_names_must_be_as_many_as_the_policy_takes():
    assert flat_state([[1, 2, 3]], EXAMPLE_CONTRACT).tolist() == [1, 2, 3]
    with pytest.raises(PredictionError, match='state has 2 values, the policy takes 3: joint_1'):
        flat_state([1, 2], EXAMPLE_CONTRACT)


@pytest.mark.parametrize(
    ('mapping', 'text'),
    [
        (NameMapping(cameras={'a': 'b'}), 'cameras b, the policy has ' + CAMERA),
        (NameMapping(actions={'arm': ('elbow',)}), 'actions elbow, the policy has joint_1'),
        (NameMapping(actions={'arm': JOINTS}), '2 actions, the policy has 3; missing: gripper'),
        (NameMapping(actions={'a': (*JOINTS, 'gripper.pos'), 'b': JOINTS}), '5 actions'),
    ],
)
def test_a_mapping_for_another_policy_is_refused_with_its_names(mapping, text):
    with pytest.raises(PredictionError, match=text):
        mapping.check(EXAMPLE_CONTRACT)


@pytest.mark.parametrize(
    ('content', 'text'),
    [
        # further ones of each field are in test/golden/refusals/gateway_mapping.txt
        ('[1]', 'must be a group of cameras, state, actions'),
        ('camera: {}', "unknown field 'camera'; did you mean cameras"),
        ('a: [', 'not YAML'),
        ('!!python/object/apply:os.system [echo]', 'not YAML'),
    ],
)
def test_a_wrong_file_is_refused_with_its_path_and_key(tmp_path, content, text):
    path = tmp_path / 'mapping.yaml'
    path.write_text(content)
    with pytest.raises(UserError, match=f'mapping {path}: .*{text}'):
        read_mapping(str(path))


def test_a_missing_and_an_oversized_file_are_refused(tmp_path):
    with pytest.raises(UserError, match='No such file'):
        read_mapping(str(tmp_path / 'none.yaml'))
    path = tmp_path / 'large.yaml'
    path.write_text('#' * (1 << 20) + '\n#')
    with pytest.raises(UserError, match='larger than'):
        read_mapping(str(path))


def test_an_empty_part_is_one_of_equal_names():
    content = {'cameras': None, 'state': None, 'actions': {}}
    assert load(MappingFile, content, 'mapping.yaml').names == EQUAL_NAMES
