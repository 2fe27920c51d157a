# SPDX-License-Identifier: Apache-2.0
"""Exported programs: what they describe, what they are shown, what they answer."""

from __future__ import annotations

import contextlib
import os
import threading

import numpy as np
import pytest

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import LoadOptions, PolicyCamera, PolicyError, PolicyRequest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

from support.policies import exported_rig as rig  # noqa: E402

from lerobot_serve.policies.exported import loader, programs  # noqa: E402
from lerobot_serve.policies.exported.loader import load  # noqa: E402
from lerobot_serve.policies.exported.programs import TorchProgram  # noqa: E402
from lerobot_serve.policies.runtime.loading_beside import beside_served_policy  # noqa: E402
from lerobot_serve.server.policy_swap import in_background  # noqa: E402


@pytest.fixture(scope='module', params=['exported', 'as_onnx'])
def program(request):
    return getattr(rig, request.param)()


@pytest.fixture(scope='module')
def policy(program, tmp_path_factory):
    return load(LoadOptions(rig.write_policy(tmp_path_factory.mktemp('policy'), program)))


@pytest.fixture(scope='module')
def torch_program():
    return rig.exported()


def test_it_describes_itself(policy):
    described = policy.describe()
    assert described.policy_type == 'exported'
    assert described.fingerprint.startswith('tiny@')
    assert described.state_names == described.action_names == ('pan.pos', 'lift.pos')
    assert described.action_range is not None
    assert len(described.action_range.low) == 2
    assert described.cameras == (PolicyCamera(rig.CAMERA, rig.HEIGHT, rig.WIDTH),)
    assert (described.chunk_size, described.trained_fps) == (rig.ROWS, 30.0)
    assert described.state_class == StateClass.CHUNK_STATELESS
    assert (described.batch_limit, described.stochastic, described.notes) == (0, False, ())
    assert policy.describe() is described


def test_values_go_in_normalised_and_come_out_in_the_robots_units(policy):
    state, colour = (5, -6), (255, 51, 102)
    (prediction,) = policy.predict([rig.request(state, colour)])
    expected = rig.model_chunk(state, colour)
    assert prediction.model.dtype == prediction.robot.dtype == np.float32
    assert prediction.model == pytest.approx(expected, abs=1e-5)
    assert prediction.robot == pytest.approx(rig.robot_chunk(expected), abs=1e-5)


def test_a_batch_answers_each_request_in_order(policy):
    requests = [rig.request((i, -i), (i, 2 * i, 3 * i)) for i in range(5)]
    for asked, answer in zip(requests, policy.predict(requests), strict=True):
        (alone,) = policy.predict([asked])
        assert answer.robot == pytest.approx(alone.robot, abs=1e-6)
    assert policy.predict([]) == []


def test_only_the_present_counts(policy):
    asked = rig.request((5, 6), (9, 9, 9))
    frame = asked.images[rig.CAMERA][0]
    longer = PolicyRequest(
        'robot', np.vstack((asked.state + 1, asked.state)), {rig.CAMERA: (frame + 50, frame)}
    )
    first, second = (policy.predict([one])[0].robot for one in (asked, longer))
    assert np.array_equal(first, second)


def test_an_image_of_another_size_is_averaged(policy):
    asked = rig.request(size=(2 * rig.HEIGHT, 2 * rig.WIDTH))
    (frame,) = asked.images[rig.CAMERA]
    frame[::2, ::2] = 200
    (answer,) = policy.predict([asked])
    assert answer.model[0, 0] == pytest.approx(50 / 255 * 6, abs=1e-5)


@pytest.mark.parametrize(
    ('wrong', 'text'),
    [
        (PolicyRequest('r', np.zeros((1, 2), np.float32)), "front' is missing"),
        (PolicyRequest('r', np.zeros((1, 3), np.float32), rig.request().images), r'got \(1, 3\)'),
        (
            PolicyRequest('r', np.zeros((1, 2), np.float32), {rig.CAMERA: (np.zeros((8, 6)),)}),
            r'uint8, got \(8, 6\) of float64',
        ),
    ],
)
def test_a_wrong_request_is_named(policy, wrong, text):
    with pytest.raises(PolicyError, match=text):
        policy.predict([wrong])


@pytest.mark.parametrize(('scale', 'white'), [('0..1', 1), ('0..255', 255)])
def test_images_are_scaled_as_the_sidecar_says(torch_program, tmp_path, scale, white):
    policy = load(LoadOptions(rig.write_policy(tmp_path, torch_program, image_scale=scale)))
    (prediction,) = policy.predict([rig.request((1, 2), (255, 0, 0))])
    assert prediction.model[0, 0] == pytest.approx(white)


@pytest.mark.parametrize('make', [rig.exported, rig.as_onnx])
def test_a_program_for_one_is_asked_one_by_one(make, tmp_path):
    policy = load(LoadOptions(rig.write_policy(tmp_path, make(dynamic=False), batch=1)))
    assert policy.describe().batch_limit == 1
    first, second = policy.predict([rig.request((1, 2)), rig.request((5, 6))])
    assert first.model == pytest.approx(rig.model_chunk((1, 2), (0, 0, 0)))
    assert second.model == pytest.approx(rig.model_chunk((5, 6), (0, 0, 0)))


class Noisy(rig.Network):
    """Adds noise to the chunk."""

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        chunk = state[:, None] * self.rows[:, None]
        return chunk + torch.randn_like(chunk) + image.mean()


def test_noise_comes_from_the_seed_of_the_request(tmp_path):
    policy = load(LoadOptions(rig.write_policy(tmp_path, rig.exported(Noisy()), stochastic=True)))
    assert policy.describe().stochastic
    assert policy.describe().batch_limit == 1
    first, other, again = policy.predict([rig.request(seed=seed) for seed in (1, 2, 1)])
    assert np.array_equal(first.robot, again.robot)
    assert not np.array_equal(first.robot, other.robot)


def test_a_program_that_is_tried_meanwhile_changes_no_number_of_a_request():
    began, tried = threading.Event(), threading.Event()

    class Slow(torch.nn.Module):
        def forward(self) -> torch.Tensor:
            began.set()
            # long enough for another program to seed the same generator
            tried.wait(0.3)
            return torch.randn(5)

    def try_another() -> None:
        assert began.wait(30)
        TorchProgram(torch.nn.Identity()).run([torch.zeros(1)], seed=2)
        tried.set()

    trying = threading.Thread(target=try_another)
    trying.start()
    (drawn,) = TorchProgram(Slow()).run([], seed=1)
    trying.join(30)
    assert torch.equal(drawn, torch.randn(5, generator=torch.Generator().manual_seed(1)))


def test_the_threads_of_a_program_that_is_swapped_in_have_the_priority_of_serving(
    tmp_path, monkeypatch
):
    def tasks() -> set[int]:
        return {int(name) for name in os.listdir('/proc/self/task')}

    def noted(*given: object) -> object:
        before = tasks()
        session = open_session(*given)
        new.extend(os.getpriority(os.PRIO_PROCESS, each) for each in tasks() - before)
        return session

    def load_beside() -> None:
        with beside_served_policy(), in_background():
            policies.append(load(options))

    policies, new = [], []
    open_session = programs.open_session
    monkeypatch.setattr(programs, 'open_session', noted)
    options = LoadOptions(rig.write_policy(tmp_path, rig.as_onnx()), cpu_threads=3)
    loading = threading.Thread(target=load_beside)
    loading.start()
    loading.join(60)
    assert policies and len(new) >= 2
    assert set(new) == {os.getpriority(os.PRIO_PROCESS, threading.get_native_id())}


@pytest.mark.parametrize(('is_beside', 'count'), [(True, 1), (False, 3)])
def test_beside_a_served_policy_a_torch_program_is_tried_with_one_thread(
    torch_program, tmp_path, monkeypatch, is_beside, count
):
    def noted(*given: object) -> object:
        counts.append(torch.get_num_threads())
        return load_torch(*given)

    def work() -> None:
        with beside_served_policy() if is_beside else contextlib.nullcontext():
            policies.append(load(options))

    counts, policies, load_torch = [], [], loader.load_torch
    monkeypatch.setattr(loader, 'load_torch', noted)
    before = torch.get_num_threads()
    options = LoadOptions(rig.write_policy(tmp_path, torch_program), cpu_threads=3)
    try:
        loading = threading.Thread(target=work)
        loading.start()
        loading.join(60)
        assert counts == [count]
        # the number of the thread that serves decides
        assert not policies[0].describe().any_thread
    finally:
        torch.set_num_threads(before)


def test_a_joint_that_never_moved_is_normalised_as_lerobot_does(
    torch_program, tmp_path, monkeypatch
):
    still = {'state.min': torch.tensor([1.0, 2.0]), 'state.max': torch.tensor([1.0, 4.0])}
    monkeypatch.setattr(rig, 'STATISTICS', rig.STATISTICS | still)
    modes = {**rig.SIDECAR['normalization'], 'state': 'min_max', 'action': 'none'}
    policy = load(LoadOptions(rig.write_policy(tmp_path, torch_program, normalization=modes)))
    (prediction,) = policy.predict([rig.request((1, 4))])
    assert prediction.robot[1].tolist() == [-1, 1]


def test_images_are_normalised_by_colour(torch_program, tmp_path, monkeypatch):
    colours = {
        f'{rig.CAMERA}.mean': torch.full((3, 1, 1), 0.5),
        f'{rig.CAMERA}.std': torch.tensor([0.5, 0.25, 1.0]),
    }
    monkeypatch.setattr(rig, 'STATISTICS', rig.STATISTICS | colours)
    modes = {**rig.SIDECAR['normalization'], rig.CAMERA: 'mean_std'}
    policy = load(LoadOptions(rig.write_policy(tmp_path, torch_program, normalization=modes)))
    (prediction,) = policy.predict([rig.request((1, 2), (255, 255, 0))])
    assert prediction.model[0, 0] == pytest.approx(1 * 1 + 2 * 2 + 3 * -0.5)


class Attention(torch.nn.Module):
    """A small network of the usual parts, with sizes that are reckoned from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        )
        layer = torch.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
        self.decoder = torch.nn.TransformerDecoder(layer, 1)
        self.state = torch.nn.Linear(rig.JOINTS, 8)
        self.rows = torch.nn.Parameter(torch.ones(rig.ROWS, 8))
        self.actions = torch.nn.Linear(8, rig.JOINTS)

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        seen = self.convolutions(image).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.state(state)[:, None], seen), 1)
        count, length, width = tokens.shape
        tokens = tokens.reshape(count * length, width).view(count, length, width)
        return self.actions(self.decoder(self.rows.expand(count, -1, -1), tokens))


def test_noise_without_a_seed_is_refused(tmp_path):
    path = rig.write_policy(tmp_path / 'said', rig.as_onnx(), stochastic=True)
    with pytest.raises(PolicyError, match=r'program.onnx cannot be stochastic'):
        load(LoadOptions(path))
    path = rig.write_policy(tmp_path / 'unsaid', rig.as_onnx(Noisy()))
    with pytest.raises(PolicyError, match=r'program.onnx is refused: it uses .*Random'):
        load(LoadOptions(path))


@pytest.mark.slow
@pytest.mark.parametrize('make', [rig.exported, rig.as_onnx])
def test_a_network_of_the_usual_parts_answers_as_it_did(tmp_path, make):
    torch.manual_seed(1)
    network = Attention().eval()
    policy = load(LoadOptions(rig.write_policy(tmp_path, make(network))))
    for prediction in policy.predict([rig.request((1, 2), (255, 0, 0))] * 3):
        image = torch.zeros(1, 3, rig.HEIGHT, rig.WIDTH)
        image[:, 0] = 1
        with torch.inference_mode():
            expected = network(image, torch.zeros(1, rig.JOINTS))[0].numpy()
        assert prediction.model == pytest.approx(expected, abs=1e-5)
