"""The device and the threads that torch computes with; called by whoever loads a policy."""

from __future__ import annotations

import re

import torch

from lerobot_serve.policies.base import PolicyError

DEVICE = re.compile(r'cpu|mps|cuda(:\d+)?')


def torch_device(text: str) -> torch.device:
    """Return a device that torch can use here. Raises PolicyError."""
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
    """Compute with so many threads on the CPU, in the whole process; 0 leaves torch's own."""
    if count:
        torch.set_num_threads(count)
