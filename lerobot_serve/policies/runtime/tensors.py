# SPDX-License-Identifier: Apache-2.0
"""Tensors of the arrays of a request without copies. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
import torch


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
