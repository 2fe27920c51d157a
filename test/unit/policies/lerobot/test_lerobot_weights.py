# SPDX-License-Identifier: Apache-2.0
"""Weights of a LeRobot directory: exactly those of the network, or refused."""

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
from support.replacing import replace

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from safetensors.torch import save_file  # noqa: E402
from support.policies.attack_rig import evil_asset  # noqa: E402
from support.policies.lerobot_rig import (  # noqa: E402
    change_json,
    change_tensors,
    copy_of,
    folder_of,
    LEROBOT,
    loaded,
    loading,
    refused,
    requests_for,
    set_json,
)

from lerobot_serve.policies.base import PolicyError  # noqa: E402
from lerobot_serve.policies.lerobot import loader, network  # noqa: E402
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from lerobot_serve.policies.lerobot.description import policy_fingerprint  # noqa: E402
from lerobot_serve.policies.lerobot.loader import load  # noqa: E402
from lerobot_serve.policies.lerobot.network import SkipRandomValues  # noqa: E402

FILLERS = (
    torch.nn.init.normal_,
    torch.nn.init.uniform_,
    lambda weight: weight.normal_(),
    lambda weight: weight.uniform_(),
)


@pytest.fixture
def copied(tmp_path):
    """A directory of an ACT policy that a test may damage."""
    return copy_of('act', tmp_path)


def rename(held):
    held['model.renamed'] = held.pop('model.action_head.bias')


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (rename, 'model.action_head.bias'),
        (rename, 'model.renamed'),
        (lambda held: held.update(extra=torch.zeros(2)), 'extra'),
        (lambda held: held.pop('model.action_head.bias'), 'model.action_head.bias'),
        (
            lambda held: held.update({'model.action_head.bias': torch.zeros(7)}),
            'model.action_head.bias is 7 in the file and 6 in the network',
        ),
        (
            lambda held: held.update({'normalize_inputs.mean': torch.zeros(2)}),
            'migrate_policy_normalization.py',
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(copied, change, said):
    change_tensors(copied / 'model.safetensors', change)
    text = refused(copied)
    assert 'model.safetensors does not fit the act policy' in text
    assert said in text


@pytest.mark.parametrize('content', [b'', b'version https://git-lfs.github.com', b'\xff' * 64])
def test_a_damaged_file_of_weights_is_refused(copied, content):
    (copied / 'model.safetensors').write_bytes(content)
    assert 'is not a readable safetensors file' in refused(copied)


def test_weights_that_are_not_finite_are_refused(copied):
    nan = float('nan')
    change_tensors(
        copied / 'model.safetensors', lambda held: held['model.action_head.bias'].fill_(nan)
    )
    assert 'is not finite' in refused(copied)


class Careless(torch.nn.Module):
    """A network whose own loader may have gone on without the file."""

    def __init__(self):
        super().__init__()
        self.config = None
        self.model = torch.nn.ModuleDict(
            {'one': torch.nn.Linear(2, 2), 'tied': torch.nn.Linear(2, 2, bias=False)}
        )
        self.model['tied'].weight = self.model['one'].weight


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (lambda held: None, None),
        (lambda held: held.update(nothing=torch.zeros(1)), 'unknown weights model.nothing'),
        (lambda held: held.pop('one.bias'), 'missing weights model.one.bias'),
        (lambda held: held['one.bias'].add_(1), 'not loaded model.one.bias'),
        (lambda held: held.update({'one.bias': torch.zeros(3)}), 'not loaded model.one.bias'),
    ],
)
def test_a_loader_that_goes_on_without_the_file_is_found_out(copied, change, said):
    careless = Careless()
    # as another project writes it: without the prefix, and a tied weight only once
    held = {
        name.removeprefix('model.'): tensor.clone()
        for name, tensor in careless.state_dict().items()
        if 'tied' not in name
    }
    change(held)
    save_file(held, copied / 'model.safetensors')
    folder = read_checkpoint(str(copied))
    if said is None:
        network.check_weights(folder, careless)
        return
    with pytest.raises(PolicyError, match=said):
        network.check_weights(folder, careless)


OWN_LOADERS = {
    'from_pretrained': classmethod(lambda cls, path, *, config, strict: cls(config)),
    '_load_as_safetensor': classmethod(lambda cls, model, *_: model),
    '_load_as_safetensor, static': staticmethod(lambda model, *_: model),
}


@pytest.mark.parametrize('name', OWN_LOADERS)
def test_every_loader_that_is_not_lerobots_common_one_is_checked(copied, name):
    act, loader_name = LEROBOT.get_policy_class('act'), name.partition(',')[0]
    own = {'config_class': act.config_class, 'name': 'careless', loader_name: OWN_LOADERS[name]}
    careless = type('Careless', (act,), own)
    config = LEROBOT.config_class.from_pretrained(str(copied))
    folder = read_checkpoint(str(copied))
    with pytest.raises(PolicyError, match='not loaded model'):
        network.load_network(folder, careless, config)


def test_a_load_draws_no_random_values_that_the_file_replaces():
    load(loading(folder_of('act')))
    before = torch.get_rng_state()
    load(loading(folder_of('act')))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_of_another_package_gets_its_random_values(copied):
    config = LEROBOT.config_class.from_pretrained(str(copied))
    folder = read_checkpoint(str(copied))
    act = LEROBOT.get_policy_class('act')
    before = torch.get_rng_state()
    network.load_network(folder, act, config)
    assert torch.equal(torch.get_rng_state(), before)
    network.load_network(replace(folder, policy_type='of_a_package'), act, config)
    assert not torch.equal(torch.get_rng_state(), before)


def test_buffers_are_filled_at_random_and_parameters_are_not():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer('table', torch.zeros(64), persistent=False)
            for fill in (
                torch.nn.init.normal_,
                torch.nn.init.uniform_,
                torch.nn.init.trunc_normal_,
            ):
                self.table.zero_()
                fill(self.table)
                assert self.table.abs().sum() > 0
            self.layers = torch.nn.ModuleList(
                [
                    torch.nn.Linear(8, 8),
                    torch.nn.Conv2d(3, 3, 3),
                    torch.nn.MultiheadAttention(8, 2),
                ]
            )
            self.weight = torch.nn.Parameter(torch.zeros(64))
            for fill in FILLERS:
                fill(self.weight)
            assert self.weight.abs().sum() == 0

    state = torch.get_rng_state()
    with SkipRandomValues():
        torch.nn.Linear(8, 8)
        assert torch.equal(torch.get_rng_state(), state)
        Network()


# sizes are bounded before anything is built; precisions; damaged folders of all kinds


GIB = 1 << 30
CAMERAS = [[3, 100_000, 100_000], [3, 4097, 48], [5, 48, 64], [1 << 40] * 3]
FILES = ('config.json', 'policy_preprocessor.json', 'policy_postprocessor.json')


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
    set_json(copied / 'config.json', **change)
    assert re.search(said, refused(copied))


def camera_of(shape):
    return {'observation.images.front': {'type': 'VISUAL', 'shape': shape}}


MORE_CAMERAS = {
    f'observation.images.more_{number}': {'type': 'VISUAL', 'shape': [3, 4096, 4096]}
    for number in range(3)
}
LONG_STATE = {'observation.state': {'type': 'STATE', 'shape': [10**9]}}


UNBOUNDED = {
    **{f'a camera of {shape}': (camera_of(shape), 'supported are at') for shape in CAMERAS},
    'all cameras together': (MORE_CAMERAS, 'over all cameras and n_obs_steps'),
    'a long state': (LONG_STATE, 'has 1000000000 values'),
}


@pytest.mark.parametrize(('features', 'said'), UNBOUNDED.values(), ids=UNBOUNDED)
def test_inputs_without_bound_are_never_built(copied, unbuilt, features, said):
    change_json(copied / 'config.json', lambda held: held['input_features'].update(features))
    assert said in refused(copied)


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
    folder = copy_of('smolvla', tmp_path)
    vlm = Path(shutil.copytree(folder_of('smolvla') / 'vlm', tmp_path / 'vlm'))
    set_json(folder / 'config.json', vlm_model_name=str(vlm))
    first = load(loading(folder)).describe().fingerprint
    vocabulary = {'a': 1}
    change_json(vlm / 'tokenizer.json', lambda held: held['model']['vocab'].update(vocabulary))
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
