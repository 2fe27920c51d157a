# SPDX-License-Identifier: Apache-2.0
"""The contract of a policy, read in a process of its own, and how two of them differ."""

from __future__ import annotations

import json

import pytest

pytest.importorskip('torch', reason='loads a policy (TORCH=none)')
pytest.importorskip('pyarrow', reason='writes a dataset (TORCH=none)')

from support.learner.tiny_dataset import Episode, NAMES, write_dataset
from support.learner.trainer_rig import REACH

from lerobot_serve.learner.trainers.base import TrainerError, TrainingStopped
from lerobot_serve.learner.trainers.contract import differences, FIELDS, read_contract


@pytest.fixture
def data(tmp_path):
    return write_dataset(tmp_path / 'data', [Episode(['person'])])


def nothing() -> None:
    pass


@pytest.mark.slow
def test_the_contract_of_a_policy(data):
    found = read_contract(REACH, data, nothing)
    assert set(found) == set(FIELDS)
    assert (found['policy_type'], found['chunk_size']) == ('builtin.reach', 30)
    assert found['action_names'] == NAMES
    assert found['cameras'][0] == ['observation.images.front', 224, 224, 3]
    assert differences(found, found) == []
    assert differences(found, found | {'trained_fps': 15.0}) == [
        'trained_fps: 30.0 before, 15.0 after'
    ]


@pytest.mark.slow
def test_a_policy_that_does_not_fit_the_dataset_is_refused(data):
    info = data / 'meta/info.json'
    info.write_text(json.dumps(json.loads(info.read_text()) | {'fps': 15}))
    with pytest.raises(TrainerError, match=r'not a policy that can be served: trained_fps is set'):
        read_contract(REACH, data, nothing)


def test_a_folder_without_a_policy_is_refused(data, tmp_path):
    with pytest.raises(TrainerError, match=r'not a policy that can be served: .* holds neither'):
        read_contract(tmp_path, data, nothing)


def test_reading_can_be_stopped(data):
    def stop() -> None:
        raise TrainingStopped

    with pytest.raises(TrainingStopped):
        read_contract(REACH, data, stop)
