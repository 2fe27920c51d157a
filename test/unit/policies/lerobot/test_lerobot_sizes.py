# SPDX-License-Identifier: Apache-2.0
"""Sizes are bounded before anything is built; precisions; damaged folders of all kinds."""

from __future__ import annotations

import json
import os
from pathlib import Path
import re
import shutil
import struct

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.attack_rig import evil_asset  # noqa: E402
from support.policies.lerobot_rig import (  # noqa: E402
    change_json,
    change_tensors,
    folder_of,
    loaded,
    loading,
    refused,
    requests_for,
)

from lerobot_serve.policies.base import PolicyError  # noqa: E402
from lerobot_serve.policies.lerobot import loader  # noqa: E402
from lerobot_serve.policies.lerobot.loader import load  # noqa: E402

GIB = 1 << 30
CAMERAS = [[3, 100_000, 100_000], [3, 4097, 48], [5, 48, 64], [1 << 40] * 3]
FILES = ('config.json', 'policy_preprocessor.json', 'policy_postprocessor.json')


@pytest.fixture
def copied(tmp_path):
    return Path(shutil.copytree(folder_of('act'), tmp_path / 'act'))


@pytest.fixture
def unbuilt(monkeypatch):
    """Fail a test that builds a network in memory."""
    monkeypatch.setattr(loader, 'load_network', lambda *_: pytest.fail('built'))


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ({'dim_model': 8192}, 'chunk_size x dim_model|in the network'),
        ({'dim_model': 64}, 'in the file and'),
        ({'dim_feedforward': 40000}, r'is 64 x 32 in the file and 40000 x 32 in the network'),
        ({'chunk_size': 10**8}, 'chunk_size must be a whole number from 1 to 4096'),
        ({'chunk_size': 4096, 'n_action_steps': 4096}, 'in the network'),
        ({'n_encoder_layers': 128, 'dim_feedforward': 65536}, 'in the network'),
        ({'n_decoder_layers': 129}, 'n_decoder_layers must be'),
        ({'vision_backbone': 'resnet152'}, 'in the network|has .* values, but'),
        ({'vision_backbone': 'get_model'}, 'vision_backbone must be'),
        ({'dropout': float('nan')}, 'dropout must be'),
    ],
)
def test_a_network_that_is_not_that_of_the_file_is_never_built(copied, unbuilt, change, said):
    change_json(copied / 'config.json', lambda held: held.update(change))
    assert re.search(said, refused(copied))


@pytest.mark.parametrize('shape', CAMERAS)
def test_a_camera_without_bound_is_never_built(copied, unbuilt, shape):
    def change(held):
        held['input_features']['observation.images.front']['shape'] = shape

    change_json(copied / 'config.json', change)
    assert 'supported are at' in refused(copied)


def test_all_cameras_together_are_bounded(copied, unbuilt):
    def change(held):
        for number in range(3):
            camera = {'type': 'VISUAL', 'shape': [3, 4096, 4096]}
            held['input_features'][f'observation.images.more_{number}'] = camera

    change_json(copied / 'config.json', change)
    assert 'over all cameras and n_obs_steps' in refused(copied)


def test_many_values_are_bounded(copied, unbuilt):
    def change(held):
        held['input_features']['observation.state']['shape'] = [10**9]

    change_json(copied / 'config.json', change)
    assert 'has 1000000000 values' in refused(copied)


def test_a_state_file_that_is_a_hole_is_refused(copied, unbuilt):
    steps = json.loads((copied / 'policy_preprocessor.json').read_text())['steps']
    name = next(step['state_file'] for step in steps if 'state_file' in step)
    count = 6 * GIB // 4
    header = json.dumps(
        {
            'observation.state.mean': {
                'dtype': 'F32',
                'shape': [count],
                'data_offsets': [0, 6 * GIB],
            }
        }
    ).encode()
    with open(copied / name, 'wb') as handle:
        handle.write(struct.pack('<Q', len(header)) + header)
        handle.truncate(8 + len(header) + 6 * GIB)
    assert 'statistics take at most' in refused(copied)


def test_a_tensor_more_does_not_pass(copied):
    change_tensors(copied / 'model.safetensors', lambda held: held.update(more=torch.zeros(4)))
    assert 'does not fit' in refused(copied)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['act', 'diffusion', 'smolvla'])
@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_less_precision_is_used_and_named(kind, dtype):
    # DDPM draws noise in each step, and torch draws other numbers in other precisions
    settings = {'noise_scheduler_type': 'DDIM'} if kind == 'diffusion' else {}
    own = loaded(kind, **settings)
    less = load(loading(folder_of(kind, **settings), dtype=dtype))
    assert own.describe().fingerprint != less.describe().fingerprint
    request = requests_for(own, 1)[0]
    expected, answer = (each.predict([request])[0].model for each in (own, less))
    assert answer.dtype == np.float32
    assert not np.array_equal(answer, expected)
    np.testing.assert_allclose(answer, expected, atol=0.2)


def test_full_precision_is_that_of_the_policy():
    own, full = loaded('act'), load(loading(folder_of('act'), dtype='float32'))
    request = requests_for(own, 1)[0]
    np.testing.assert_array_equal(*(each.predict([request])[0].model for each in (own, full)))


def test_the_fingerprint_covers_what_tokenizes(tmp_path):
    folder = Path(shutil.copytree(folder_of('smolvla'), tmp_path / 'smolvla'))
    vlm = Path(shutil.copytree(folder_of('smolvla') / 'vlm', tmp_path / 'vlm'))
    change_json(folder / 'config.json', lambda held: held.update(vlm_model_name=str(vlm)))
    first = load(loading(folder)).describe().fingerprint
    vocabulary = {'a': 1}
    change_json(vlm / 'tokenizer.json', lambda held: held['model']['vocab'].update(vocabulary))
    from lerobot_serve.policies.lerobot.checkpoint.checkpoint import read_checkpoint
    from lerobot_serve.policies.lerobot.description import policy_fingerprint

    assert policy_fingerprint(read_checkpoint(str(folder)), loading(folder)) != first


def leaves(value, path=()):
    """Return the path to every value in a tree."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = [(*path, key) for key, _ in items]
    nested = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in nested:
        if isinstance(each, (dict, list)):
            found += leaves(each, (*path, key))
    return found


HOSTILE = st.one_of(
    st.sampled_from(
        ['ASSET', 'evil.Config', '__class__', 'os.system', 10**8, -1, 1 << 70, 1e308, [], {}, None]
    ),
    st.sampled_from([True, [[]], ['ASSET'], {'auto_map': {'AutoConfig': 'evil.Config'}}, 'cuda']),
    st.integers(),
    st.text(max_size=8),
)


@given(st.sampled_from(['act', 'smolvla']), st.sampled_from(FILES), st.data())
@settings(max_examples=40, deadline=None)
def test_no_change_of_a_folder_runs_code_or_gives_a_traceback(tmp_path_factory, kind, file, data):
    root = tmp_path_factory.mktemp('mutated')
    marker = root / 'marker'
    asset = evil_asset(root / 'asset', marker)
    # hard links: the weights are not what changes
    folder = root / kind
    folder.mkdir()
    for path in folder_of(kind).iterdir():
        if path.name in FILES:
            shutil.copy(path, folder / path.name)
        elif path.is_dir():
            shutil.copytree(path, folder / path.name, copy_function=os.link)
        else:
            os.link(path, folder / path.name)
    held = json.loads((folder / file).read_text())
    path = data.draw(st.sampled_from(leaves(held)))
    value = data.draw(HOSTILE)
    place = held
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = str(asset) if value == 'ASSET' else value
    if data.draw(st.booleans()) and isinstance(place, dict):
        place[data.draw(st.sampled_from(['trust_remote_code', 'class', 'stats', 'dtype']))] = value
    (folder / file).write_text(json.dumps(held))
    try:
        load(loading(folder))
    except PolicyError as error:
        assert '\n' not in str(error)
    assert not marker.exists()
