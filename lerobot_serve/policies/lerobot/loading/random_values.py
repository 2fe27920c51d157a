# SPDX-License-Identifier: Apache-2.0
"""
Build a network without the random values that its file replaces: half of the time of a load.

Thread: the one that loads a policy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode

from lerobot_serve.policies.runtime.loading_beside import give_way

# a mode sees these functions of torch.nn.init; of the others it sees the methods that they call
FILLS = frozenset(
    {
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
        init.normal_,
        init.uniform_,
        init.kaiming_uniform_,
    }
)


class SkipRandomValues(TorchFunctionMode):
    """
    Leave parameters as they are where their initialization fills them at random, and tensors
    without memory, too. The caller loads every parameter from a file. Buffers are filled: a file
    need not have them.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        give_way()
        given = kwargs or {}
        if func in FILLS:
            filled = args[0] if args else given['tensor']
            if filled.is_meta or isinstance(filled, torch.nn.Parameter):
                return filled
        return func(*args, **given)
