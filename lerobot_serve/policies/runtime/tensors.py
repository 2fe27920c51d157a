# SPDX-License-Identifier: Apache-2.0
"""Tensors of the arrays of a request without copies, and those of a file. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
import torch

from lerobot_serve.policies.files.file_headers import unreadable


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
