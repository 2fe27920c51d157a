# SPDX-License-Identifier: Apache-2.0
"""The demo policy: what it describes, and what it answers."""

import numpy as np
import pytest

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import LoadOptions, PolicyError, PolicyRequest
from lerobot_serve.sim import cameras
from lerobot_serve.sim.arm import HIGH_RAD, HOME_RAD, JOINT_NAMES, LOW_RAD

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
safetensors_torch = pytest.importorskip('safetensors.torch', reason='(TORCH=none)')

from support.paths import REPOSITORY  # noqa: E402

from lerobot_serve.demo.train import success_outcomes, write_aside  # noqa: E402
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
