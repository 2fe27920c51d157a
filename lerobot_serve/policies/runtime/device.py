# SPDX-License-Identifier: Apache-2.0
"""
The device and the CPU threads of torch (the thread that loads a policy); tensors of the arrays of
a request without copies, and those of a file (any thread).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
import torch

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.files.file_headers import unreadable
from lerobot_serve.policies.runtime.loading_beside import at_serving_priority, is_beside

DEVICE = re.compile(r'cpu|mps|cuda(:\d+)?')


def torch_device(text: str) -> torch.device:
    """Return a usable device. Raises PolicyError."""
    if not DEVICE.fullmatch(text):
        raise PolicyError(f"device must be 'cpu' or 'cuda:N', got {text!r}")
    try:
        device = torch.device(text)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolicyError(
            f"the device {text!r} cannot be used here ({reason}); use 'cpu', or a "
            'machine and a build of torch that have it'
        ) from error
    return device


def set_cpu_threads(count: int) -> None:
    """Set the number of CPU threads of the process; 0 leaves the default of torch."""
    if count:
        torch.set_num_threads(count)


def use_one_thread_beside(device: torch.device) -> None:
    """
    Let the calling thread compute with one CPU thread if it loads a policy for the CPU beside the
    served one: the threads of two inferences at once wait for each other. Other threads keep their
    number.
    """
    if device.type != 'cpu' or not is_beside():
        return
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    # a new thread takes the number that any thread has set last
    at_serving_priority(lambda: torch.set_num_threads(count))


def runs_in_any_thread(device: torch.device) -> bool:
    """
    Return whether an inference may run in any thread: on the CPU with one thread. With more,
    OpenMP keeps a pool of threads for each thread that calls; a GPU belongs to the thread that set
    it up.
    """
    return device.type == 'cpu' and torch.get_num_threads() == 1


class _Memory:
    """The memory of an array, for numpy; keeps the array."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values
        interface = values.__array_interface__
        self.__array_interface__ = interface | {'data': (interface['data'][0], False)}


def tensor_view(values: NDArray[Any]) -> torch.Tensor:
    """
    Return a tensor of the same memory, which is only to be read: images are views of the bytes of
    their request. torch would warn of an array that is not writable.
    """
    values = np.ascontiguousarray(values)
    return torch.from_numpy(values if values.flags.writeable else np.asarray(_Memory(values)))


def stacked(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays of equal shape as one batch; a single one is not copied."""
    return values[0][None] if len(values) == 1 else np.stack(values)


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file in host memory. Raises PolicyError."""
    try:
        # copied, so that the file may be replaced while the policy runs
        return {name: tensor.clone() for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise unreadable(file, 'safetensors file', error) from error
