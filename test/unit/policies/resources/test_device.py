# SPDX-License-Identifier: Apache-2.0
"""The device and the threads of torch."""

from __future__ import annotations

import threading

import pytest

from lerobot_serve.policies.base import PolicyError

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

from lerobot_serve.policies.runtime.device import (  # noqa: E402
    set_cpu_threads,
    torch_device,
    use_one_thread_beside,
)
from lerobot_serve.policies.runtime.loading_beside import beside_served_policy  # noqa: E402


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_the_cpu_is_a_device():
    assert torch_device('cpu') == torch.device('cpu')


@pytest.mark.parametrize('text', ['banana', '', 'meta', 'cuda:', 'cuda:-1', 'xpu', 'cpu\n'])
def test_what_is_no_device_is_said(text):
    with pytest.raises(PolicyError) as caught:
        torch_device(text)
    assert str(caught.value) == f"device must be 'cpu' or 'cuda:N', got {text!r}"


def test_a_device_that_is_not_here_is_one_line():
    with pytest.raises(
        PolicyError, match=r"the device 'cuda:99' cannot be used here \("
    ) as caught:
        torch_device('cuda:99')
    assert '\n' not in str(caught.value)


def test_threads_are_as_many_as_said(threads):
    set_cpu_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1


def test_no_number_of_threads_leaves_them(threads):
    set_cpu_threads(0)
    assert torch.get_num_threads() == threads


def test_beside_a_served_policy_the_thread_that_loads_uses_one_cpu_thread():
    counts = {}

    def load() -> None:
        counts['new'] = torch.get_num_threads()
        use_one_thread_beside(torch.device('cpu'))
        counts['alone'] = torch.get_num_threads()
        with beside_served_policy():
            use_one_thread_beside(torch.device('cuda'))
            counts['for a GPU'] = torch.get_num_threads()
            use_one_thread_beside(torch.device('cpu'))
            counts['beside'] = torch.get_num_threads()
            later = threading.Thread(target=lambda: counts.update(later=torch.get_num_threads()))
            later.start()
            later.join()

    torch.set_num_threads(3)
    loading = threading.Thread(target=load)
    loading.start()
    loading.join()
    assert counts == {'new': 3, 'alone': 3, 'for a GPU': 3, 'beside': 1, 'later': 3}
    assert torch.get_num_threads() == 3
