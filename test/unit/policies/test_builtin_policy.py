# SPDX-License-Identifier: Apache-2.0
"""The demo policy: what it describes, and what it answers."""

import json
import math
from pathlib import Path
import pickle
import shutil

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import LoadOptions, PolicyError, PolicyRequest
from lerobot_serve.policies.builtin.settings import ReachSettings, ReachSizes
from lerobot_serve.policies.exported.sidecar import Sidecar
from lerobot_serve.policies.files.policy_folder import read_policy_json
from lerobot_serve.sim import cameras
from lerobot_serve.sim.arm import HIGH_RAD, HOME_RAD, JOINT_NAMES, LOW_RAD

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
safetensors_torch = pytest.importorskip('safetensors.torch', reason='(TORCH=none)')

from support.paths import REPOSITORY  # noqa: E402
from support.policies import exported_rig  # noqa: E402

from lerobot_serve.demo.train import success_outcomes, write_aside  # noqa: E402
from lerobot_serve.policies.builtin.network import (  # noqa: E402
    Examples,
    fit,
    ReachNetwork,
    reproducible,
    write_weights,
)
from lerobot_serve.policies.builtin.policy import load  # noqa: E402

SHIPPED = REPOSITORY / 'config' / 'policies' / 'reach'


@pytest.fixture(scope='module')
def policy():
    return load(LoadOptions(str(SHIPPED)))


def request(pose=HOME_RAD, target_xy=(0.25, 0.1), height=224, width=224):
    images = {
        f'observation.images.{name}': (cameras.render(name, height, width, pose, target_xy),)
        for name in cameras.NAMES
    }
    return PolicyRequest('test', np.array([pose], np.float32), images)


def some_requests(count):
    generator = np.random.default_rng(5)
    return [request(generator.uniform(LOW_RAD, HIGH_RAD)) for _ in range(count)]


def test_it_describes_itself(policy):
    description = policy.describe()
    assert description.policy_type == 'builtin.reach'
    assert description.fingerprint.startswith('reach@')
    assert description.action_names == tuple(f'{name}.pos' for name in JOINT_NAMES)
    assert description.state_names == description.action_names
    assert [(c.name, c.height, c.width, c.channels) for c in description.cameras] == [
        ('observation.images.front', 224, 224, 3),
        ('observation.images.wrist', 224, 224, 3),
    ]
    assert (description.chunk_size, description.trained_fps) == (30, 30.0)
    assert description.state_class == StateClass.CHUNK_STATELESS
    assert not description.supports_rtc
    assert description.device == 'cpu'
    assert policy.describe() is description


def test_the_shipped_files_are_small():
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 1_000_000


def test_it_reaches_the_target(policy):
    outcomes = success_outcomes(policy, seed=6, attempts=100)
    assert len(outcomes) == 100
    assert sum(outcome.success for outcome in outcomes) >= 90


def test_it_misses_with_a_wrist_camera_that_was_moved(policy):
    outcomes = success_outcomes(policy, seed=6, attempts=20, pixels=64, wrist_shift_m=0.05)
    assert sum(outcome.success for outcome in outcomes) <= 4


@pytest.mark.parametrize('name', cameras.NAMES)
def test_it_looks_at_both_cameras(policy, name):
    seen, blind = request(), request()
    blind.images[f'observation.images.{name}'][0][:] = 0
    first, second = policy.predict([seen, blind])
    assert np.abs(first.robot - second.robot).max() > 0.05


def test_the_same_requests_give_the_same_bits(policy):
    for count in (1, 3):
        first, second = (policy.predict(some_requests(count)) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            assert one.model.tobytes() == other.model.tobytes()
            assert one.robot.tobytes() == other.robot.tobytes()


def test_a_batch_answers_each_request_in_order(policy):
    requests = some_requests(5)
    together = policy.predict(requests)
    assert len(together) == 5
    for asked, answer in zip(requests, together, strict=True):
        (alone,) = policy.predict([asked])
        assert np.allclose(answer.robot, alone.robot, atol=1e-4)
    assert policy.predict([]) == []


def test_chunks_are_relative_to_the_state(policy):
    (prediction,) = policy.predict([request()])
    for chunk in (prediction.model, prediction.robot):
        assert chunk.shape == (30, 6)
        assert chunk.dtype == np.float32
    weights = safetensors_torch.load_file(SHIPPED / 'model.safetensors')
    offsets = prediction.model * weights['offset_std'].numpy() + weights['offset_mean'].numpy()
    assert np.allclose(prediction.robot, np.array(HOME_RAD) + offsets, atol=1e-5)


def test_only_the_newest_state_counts(policy):
    asked = request()
    longer = PolicyRequest('test', np.vstack((asked.state + 1, asked.state)), asked.images)
    first, second = (policy.predict([one])[0].robot for one in (asked, longer))
    assert (first == second).all()


@pytest.mark.parametrize('shape', [(480, 640), (120, 100)])
def test_any_resolution_works(policy, shape):
    for target_xy in ((0.25, 0.1), (0.2, -0.2)):
        asked = [request(HOME_RAD, target_xy), request(HOME_RAD, target_xy, *shape)]
        usual, other = policy.predict(asked)
        assert np.abs(usual.robot - other.robot).max() < 0.1


def without(images):
    del images['observation.images.wrist']


def change(images, function):
    name = 'observation.images.wrist'
    images[name] = tuple(map(function, images[name]))


def floats(images):
    change(images, lambda image: image / 255)


def grey(images):
    change(images, lambda image: image[..., :1])


@pytest.mark.parametrize(
    ('spoil', 'text'),
    [(without, "wrist' is missing"), (floats, 'uint8, got .* of float64'), (grey, '224, 1')],
)
def test_a_wrong_image_is_named(policy, spoil, text):
    asked = request()
    spoil(asked.images)
    with pytest.raises(PolicyError, match=text):
        policy.predict([asked])


def test_a_wrong_state_is_named(policy):
    with pytest.raises(PolicyError, match=r'steps x 6, got \(1, 7\)'):
        policy.predict([PolicyRequest('test', np.zeros((1, 7), np.float32), request().images)])


def test_torch_is_left_as_it_was():
    def state():
        return (
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark,
            torch.random.get_rng_state().tolist(),
        )

    with torch.enable_grad():
        before = state()
        load(LoadOptions(str(SHIPPED))).predict([request()])
        assert state() == before


def test_one_that_aims_aside_reaches_wide_targets_and_misses_narrow_ones(tmp_path):
    """The version of the demo that gets worse when the targets do: a gate finds nothing in it."""
    champion = REPOSITORY / 'config' / 'policies' / 'reach'
    write_aside(champion, tmp_path / 'aside')
    aside = load(LoadOptions(str(tmp_path / 'aside')))
    assert aside.describe().fingerprint.startswith('aside@')

    def reached(reach_m: float) -> int:
        return sum(each.success for each in success_outcomes(aside, 3, 50, reach_m=reach_m))

    assert reached(0.03) >= 40
    assert reached(0.01) <= 10


# loading the demo policy: what identifies it, and what is said when it cannot be loaded


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
    'one camera': (change_settings(cameras=SETTINGS['cameras'][:1]), 'a list of two cameras'),
    'same cameras': (change_settings(cameras=SETTINGS['cameras'][:1] * 2), 'different names'),
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


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ('kind', 'fields'), [(ReachSettings, SETTINGS), (Sidecar, exported_rig.SIDECAR)]
)
@given(st.data(), values)
@settings(max_examples=100, deadline=None)
def test_no_setting_gives_a_traceback(tmp_path_factory, kind, fields, data, value):
    file = tmp_path_factory.getbasetemp() / 'any-policy.json'
    name = data.draw(st.sampled_from(sorted(fields)))
    file.write_text(json.dumps({**fields, name: value}))
    try:
        read = read_policy_json(kind, file)
    except PolicyError as error:
        assert str(file) in str(error)
    else:
        assert kind is Sidecar or getattr(read, name) == value


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


# fitting the network of the demo policy: bits that repeat, and rows that do not count


ROWS, COUNT, STEPS = 4, 6, 3


def examples(known=None, offset_of_unknown=0.0) -> Examples:
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, COUNT, 8, 8, 3), dtype=torch.uint8, generator=draw)
    offset = torch.rand((COUNT, ROWS, 2), generator=draw)
    if known is not None:
        offset[~known] = offset_of_unknown
    return Examples(images[0], images[1], torch.rand((COUNT, 2), generator=draw), offset, known)


def fitted(given: Examples) -> dict:
    torch.manual_seed(2)
    network = ReachNetwork(2, ROWS, ReachSizes(8, (2, 3), 5))
    network.state_std[:], network.offset_std[:] = 1.0, 1.0
    losses = []
    batches = torch.tensor([0, 1, 2, 3, 4, 5, 0, 3, 5]).split(COUNT // 2)
    with reproducible(1):
        fit(
            network,
            given,
            batches,
            steps=STEPS,
            learning_rate=0.01,
            on_step=lambda number, loss: losses.append((number, loss)),
        )
    assert [number for number, _ in losses] == [1, 2, 3]
    return {'losses': torch.tensor(losses), **network.state_dict()}


def same(first: dict, second: dict) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_same_examples_give_the_same_bits():
    assert same(fitted(examples()), fitted(examples()))


def test_what_is_not_known_does_not_count():
    known = torch.ones((COUNT, ROWS), dtype=torch.bool)
    known[::2, 2:] = False
    first, second = (fitted(examples(known, offset)) for offset in (0.0, 100.0))
    assert same(first, second)
    known[1, 3] = False
    assert not same(first, fitted(examples(known)))


def test_all_known_is_as_without_a_mask():
    known = torch.ones((COUNT, ROWS), dtype=torch.bool)
    first, second = fitted(examples()), fitted(examples(known))
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)


def test_weights_are_readable_by_others(tmp_path):
    network = ReachNetwork(2, ROWS, ReachSizes(8, (2, 3), 5))
    write_weights(network, tmp_path / 'model.safetensors')
    assert (tmp_path / 'model.safetensors').stat().st_mode & 0o777 == 0o644
