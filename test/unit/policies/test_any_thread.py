# SPDX-License-Identifier: Apache-2.0
"""Policies of torch and ONNX with one CPU thread: any thread may predict; requests are views."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from lerobot_serve.policies.base import LoadOptions, PolicyRequest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

from support.paths import REPOSITORY  # noqa: E402
from support.policies import exported_rig  # noqa: E402

from lerobot_serve.policies.builtin import policy as builtin  # noqa: E402
from lerobot_serve.policies.exported import loader as exported  # noqa: E402
from lerobot_serve.policies.lerobot.prediction.network_inference import (  # noqa: E402
    ObservationBuilder,
)
from lerobot_serve.policies.runtime.device import (  # noqa: E402
    runs_in_any_thread,
    stacked,
    tensor_view,
)
from lerobot_serve.policies.runtime.request_inputs import blank_request  # noqa: E402

KINDS = ('exported', 'as_onnx', 'builtin')


@pytest.fixture(autouse=True)
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def loaded(kind: str, cpu_threads: int, folder):
    if kind == 'builtin':
        path = str(REPOSITORY / 'config' / 'policies' / 'reach')
        return builtin.load(LoadOptions(path, cpu_threads=cpu_threads))
    path = exported_rig.write_policy(folder, getattr(exported_rig, kind)())
    return exported.load(LoadOptions(path, cpu_threads=cpu_threads))


@pytest.mark.slow
@pytest.mark.parametrize('cpu_threads', [1, 2])
@pytest.mark.parametrize('kind', KINDS)
def test_only_with_one_cpu_thread_any_thread_may_predict(kind, cpu_threads, tmp_path):
    policy = loaded(kind, cpu_threads, tmp_path)
    assert policy.describe().any_thread == (cpu_threads == 1)


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_each_thread_gets_the_same_bits(kind, tmp_path):
    policy = loaded(kind, 1, tmp_path)
    asked = [blank_request('a', policy.describe())]

    def predict() -> bytes:
        (prediction,) = policy.predict(asked)
        return prediction.model.tobytes() + prediction.robot.tobytes()

    here = predict()
    with ThreadPoolExecutor(3) as pool:
        assert {each.result() for each in [pool.submit(predict) for _ in range(9)]} == {here}


def test_a_gpu_belongs_to_one_thread():
    torch.set_num_threads(1)
    assert runs_in_any_thread(torch.device('cpu'))
    assert not runs_in_any_thread(torch.device('cuda'))


def read_only(height: int, width: int) -> np.ndarray:
    """Return an image as it is in a request: a view of its bytes."""
    return np.frombuffer(bytes(height * width * 3), np.uint8).reshape(height, width, 3)


@pytest.mark.filterwarnings('error')
def test_a_single_request_is_not_copied():
    frame = read_only(4, 6)
    tensor = tensor_view(stacked([frame]))
    assert np.shares_memory(tensor.numpy(), frame)
    assert tensor.shape == (1, 4, 6, 3)
    # the tensor keeps the bytes
    assert tensor_view(np.frombuffer(bytes([7]) * 9000, np.uint8)).eq(7).all()
    assert np.array_equal(stacked([frame, frame + 1]), [frame, frame + 1])


def test_no_image_is_copied_on_the_way_to_lerobot():
    frame = read_only(720, 1280)
    camera = SimpleNamespace(name='front', height=720, width=1280, channels=3)
    wanted = SimpleNamespace(observation_steps=1, state_names=(), cameras=(camera,))
    builder = ObservationBuilder(wanted, torch.device('cpu'), resizes=False)
    asked = PolicyRequest('a', np.zeros((1, 0), np.float32), {'front': (frame,)})
    builder.build(asked)
    # of numpy: the floats of torch are not traced
    tracemalloc.start()
    (row,) = builder.build(asked)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert row['front'].shape == (1, 3, 720, 1280)
    assert peak_bytes < frame.nbytes / 10
