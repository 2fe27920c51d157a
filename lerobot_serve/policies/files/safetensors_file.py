# SPDX-License-Identifier: Apache-2.0
"""Read a safetensors file. Thread: the one that loads a policy."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
import torch

from lerobot_serve.policies.base import PolicyError


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file in host memory. Raises PolicyError."""
    try:
        # copied, so that the file may be replaced while the policy runs
        return {name: tensor.clone() for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise PolicyError(
            f'{file} is not a readable safetensors file ({error}); copy it again in '
            'binary mode; fetch it with git lfs if it is a pointer file'
        ) from error
