# SPDX-License-Identifier: Apache-2.0
"""Loading the demo policy: what identifies it, and what is said when it cannot be loaded."""

import json
import math
from pathlib import Path
import pickle
import shutil

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.builtin.settings import ReachSettings
from lerobot_serve.policies.files.policy_json import read_policy_json

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
safetensors_torch = pytest.importorskip('safetensors.torch', reason='(TORCH=none)')

from support.paths import REPOSITORY  # noqa: E402

from lerobot_serve.policies.builtin.policy import load  # noqa: E402

SHIPPED = REPOSITORY / 'config' / 'policies' / 'reach'
SETTINGS = json.loads((SHIPPED / 'policy.json').read_text())


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(SHIPPED, tmp_path / 'reach'))


def test_the_fingerprint_follows_the_content(folder):
    assert load(LoadOptions(str(folder))).describe() == load(LoadOptions(str(SHIPPED))).describe()
    change_weight('perceptron.0.bias', lambda weight: weight + 1)(folder)
    changed = load(LoadOptions(str(folder))).describe().fingerprint
    assert changed != load(LoadOptions(str(SHIPPED))).describe().fingerprint


def test_a_loaded_policy_does_not_need_its_files(folder):
    loaded = load(LoadOptions(str(folder)))
    expected = [weight.clone() for weight in loaded.network.state_dict().values()]
    weights = folder / 'model.safetensors'
    weights.write_bytes(b'\0' * weights.stat().st_size)
    assert all(map(torch.equal, loaded.network.state_dict().values(), expected))


def change_settings(**values):
    def change(folder):
        (folder / 'policy.json').write_text(json.dumps({**SETTINGS, **values}))

    return change


def drop_setting(name):
    def change(folder):
        kept = {key: value for key, value in SETTINGS.items() if key != name}
        (folder / 'policy.json').write_text(json.dumps(kept))

    return change


def change_weight(name, function):
    def change(folder):
        file = folder / 'model.safetensors'
        weights = safetensors_torch.load(file.read_bytes())
        weights[name] = function(weights[name])
        kept = {key: value for key, value in weights.items() if value is not None}
        safetensors_torch.save_file(kept, file)

    return change


def replace_file(name, data):
    return lambda folder: (folder / name).write_bytes(data)


LINEAR = 'perceptron.2.weight'
BROKEN = {
    'no folder': (lambda f: shutil.rmtree(f), 'is not a folder'),
    'no settings': (
        lambda f: (f / 'policy.json').unlink(),
        'policy.json is missing, so',
    ),
    'no weights': (
        lambda f: (f / 'model.safetensors').unlink(),
        'safetensors is missing, so',
    ),
    'not JSON': (replace_file('policy.json', b'{"id": '), 'not JSON'),
    'not text': (replace_file('policy.json', b'\xff\xfe'), 'not JSON'),
    'not a group': (replace_file('policy.json', b'[1]'), r'must be a group .* got \[1\]'),
    'missing field': (drop_setting('chunk_size'), 'chunk_size is missing; it must be a whole'),
    'unknown field': (change_settings(speed=2), "unknown field 'speed'; allowed are format"),
    'later format': (change_settings(format_version=2), 'format_version must be 1 .* got 2'),
    'other kind': (change_settings(kind='act'), "kind must be 'builtin.reach', got 'act'"),
    'one camera': (change_settings(cameras=SETTINGS['cameras'][:1]), 'a list of two cameras'),
    'same cameras': (change_settings(cameras=SETTINGS['cameras'][:1] * 2), 'different names'),
    'no height': (
        change_settings(cameras=[SETTINGS['cameras'][0], {'name': 'wrist', 'width': 3}]),
        r'cameras\[1\]: height is missing',
    ),
    'other actions': (change_settings(action_names=['a']), 'action_names must equal state_names'),
    'no rate': (change_settings(trained_fps=0), 'trained_fps must be a number above 0 .* got 0'),
    'other rows': (change_settings(chunk_size=31), r'\(180,\) .* requires \(186,\)'),
    'huge': (
        change_settings(network={'image_pixels': 64, 'channels': [8, 16], 'hidden': 4096}),
        'requires .*4096',
    ),
    'not safetensors': (replace_file('model.safetensors', b'version https://git-lfs'), 'git lfs'),
    'empty weights': (replace_file('model.safetensors', b''), 'not a readable safetensors'),
    'a pickle': (replace_file('model.safetensors', pickle.dumps(print)), 'not a readable safe'),
    'shape': (change_weight(LINEAR, lambda w: w[:-1].clone()), r'\(255, 256\) .* \(256, 256\)'),
    'type': (change_weight(LINEAR, lambda w: w.double()), 'torch.float64, .* torch.float32'),
    'no tensor': (change_weight(LINEAR, lambda w: None), f'missing or unknown tensors {LINEAR}'),
    'not finite': (change_weight(LINEAR, lambda w: w * math.nan), f'{LINEAR} has values that are'),
    'no spread': (change_weight('state_std', lambda w: w * 0), 'state_std must be above 0'),
}


@pytest.mark.parametrize(('spoil', 'text'), BROKEN.values(), ids=BROKEN)
def test_a_broken_folder_is_explained(folder, spoil, text):
    spoil(folder)
    with pytest.raises(PolicyError, match=text) as caught:
        load(LoadOptions(str(folder)))
    assert str(folder) in str(caught.value)


def test_an_empty_path_is_explained():
    with pytest.raises(PolicyError, match=r"is its folder, .*; '' is not a folder"):
        load(LoadOptions())


@pytest.mark.parametrize('device', ['banana', '', 'meta', 'cuda:', 'cuda:-1', 'xpu', 'cpu\n'])
def test_what_is_no_device_is_one_short_line(device):
    with pytest.raises(PolicyError) as caught:
        load(LoadOptions(str(SHIPPED), device))
    assert str(caught.value) == f"device must be 'cpu' or 'cuda:N', got {device!r}"


def test_a_name_stands_in_the_fingerprint():
    own, named = (
        load(LoadOptions(str(SHIPPED), name=name)).describe().fingerprint for name in ('', 'mine')
    )
    assert named == f'mine@{own.partition("@")[2]}'


def test_what_the_operator_says_must_be_what_the_files_say():
    names = tuple(SETTINGS['state_names'])
    load(LoadOptions(str(SHIPPED), state_names=names, action_names=names, trained_fps=30.0))
    for wrong in (
        {'state_names': names[::-1]},
        {'action_names': names[:-1]},
        {'trained_fps': 29.5},
    ):
        with pytest.raises(PolicyError, match=f'^{next(iter(wrong))} is set to .* policy has '):
            load(LoadOptions(str(SHIPPED), **wrong))


def test_without_room_nothing_is_read():
    with pytest.raises(PolicyError, match=r'needs \d+ MB of this .* MB are free'):
        load(LoadOptions(str(SHIPPED), memory_margin_bytes=1 << 50))


def test_it_computes_with_the_threads_that_were_said():
    before = torch.get_num_threads()
    try:
        load(LoadOptions(str(SHIPPED), cpu_threads=before + 1))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_without_a_number_of_threads_it_computes_in_one():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        load(LoadOptions(str(SHIPPED)))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_device_that_this_machine_has_not_is_explained():
    with pytest.raises(PolicyError, match=r"device 'cuda:99' cannot be used here .* use 'cpu'"):
        load(LoadOptions(str(SHIPPED), 'cuda:99'))


@pytest.mark.skipif(torch.cuda.is_available(), reason='this machine has CUDA')
def test_cuda_without_cuda_is_explained():
    with pytest.raises(PolicyError, match="device 'cuda' cannot be used here"):
        load(LoadOptions(str(SHIPPED), 'cuda'))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(st.sampled_from(sorted(SETTINGS)), values)
@settings(max_examples=100, deadline=None)
def test_no_setting_gives_a_traceback(tmp_path_factory, name, value):
    file = tmp_path_factory.getbasetemp() / 'any-policy.json'
    file.write_text(json.dumps({**SETTINGS, name: value}))
    try:
        read = read_policy_json(ReachSettings, file)
    except PolicyError as error:
        assert str(file) in str(error)
    else:
        assert name in ('id', 'chunk_size', 'trained_fps')
        assert getattr(read, name) == value


@given(st.integers(0, 3000), st.binary(max_size=12))
@settings(max_examples=40, deadline=None)
def test_no_damage_to_the_weights_gives_a_traceback(tmp_path_factory, start, damage):
    folder = tmp_path_factory.getbasetemp() / 'damaged'
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)
    data = bytearray((SHIPPED / 'model.safetensors').read_bytes())
    data[start : start + 12] = damage
    (folder / 'model.safetensors').write_bytes(data)
    try:
        load(LoadOptions(str(folder)))
    except PolicyError as error:
        assert str(folder) in str(error)
    else:
        assert len(damage) == 12
