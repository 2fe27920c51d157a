# SPDX-License-Identifier: Apache-2.0
"""
The precision of a network: its own, or the one the operator sets. Thread: the one that loads.

Some policy types have a setting for the precision; the others compute under torch's autocast,
which keeps weights in float32 and is measured against float32 in the tests.
"""

from __future__ import annotations

from typing import Any

import torch

AUTOCAST_DTYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16}


def set_dtype(config: Any, dtype: str) -> None:
    """Set the precision in a configuration; an empty one changes nothing."""
    if dtype and hasattr(config, 'dtype'):
        config.dtype = dtype
    elif dtype:
        config.use_amp = False


def autocast_dtype(config: Any, dtype: str) -> torch.dtype | None:
    """Return the precision of autocast; None if the network computes in that of its weights."""
    if dtype:
        return None if hasattr(config, 'dtype') else AUTOCAST_DTYPES.get(dtype)
    uses_amp = config.use_amp and config.device.startswith('cuda')
    return torch.float16 if uses_amp else None
