# SPDX-License-Identifier: Apache-2.0
"""The classes of the tests pickle as LeRobot's own do, and LeRobot reads what is written."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from benchmarks.harness import peer_classes as ours
from benchmarks.harness.exploits import plain_observation
from lerobot_serve.peer_formats.safe_pickle import read_policy_config, write_actions

pytest.importorskip('lerobot')


@pytest.fixture(scope='module')
def theirs():
    from lerobot_serve.policies.lerobot.compat import lerobot

    lerobot()
    from lerobot.async_inference import helpers

    return helpers


@pytest.mark.parametrize('protocol', [2, 4, 5])
def test_observations_are_alike(theirs, protocol):
    sent = plain_observation()
    own = theirs.TimedObservation(**vars(sent))
    assert pickle.dumps(own, protocol) == ours.pickled(sent, protocol)


def test_configurations_are_alike(theirs):
    measured = {'a.pos': float, 'b.pos': float, 'front': (480, 640, 3)}
    features = theirs.hw_to_dataset_features(measured, 'observation', use_video=False)
    own = pickle.dumps(theirs.RemotePolicyConfig('act', 'user/model', features, 50, 'cpu'))
    named = ours.features(('a.pos', 'b.pos'), {'front': (480, 640, 3)})
    mine = ours.pickled(ours.RemotePolicyConfig('act', 'user/model', named, 50, 'cpu'))
    assert read_policy_config(own) == read_policy_config(mine)


def test_lerobot_reads_a_chunk(theirs):
    chunk = np.arange(12, dtype=np.float32).reshape(3, 4)
    read = pickle.loads(write_actions(chunk, 1.5, 10, 0.5))
    assert [type(each) for each in read] == [theirs.TimedAction] * 3
    assert [each.get_timestep() for each in read] == [10, 11, 12]
    assert [each.get_timestamp() for each in read] == [1.5, 2.0, 2.5]
    assert [each.get_action().tolist() for each in read] == chunk.tolist()
