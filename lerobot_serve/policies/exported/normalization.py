# SPDX-License-Identifier: Apache-2.0
"""
Normalize the inputs and outputs of a program as LeRobot does: to mean 0 and deviation 1, or to
-1..1. Owned by the inference worker.
"""

from __future__ import annotations

from dataclasses import dataclass
import os
from pathlib import Path

import torch

from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.exported.sidecar import ACTION, MODES, Sidecar, STATE
from lerobot_serve.policies.runtime.device import read_tensors

# replaces a spread of 0, for example of a joint that never moved
MIN_SPREAD = 1e-8
# standard deviations on each side of the mean
RANGE_DEVIATIONS = 3


@dataclass(frozen=True, slots=True, eq=False)
class FeatureScale:
    """Scale of one feature: (value - start) / divisor + lowest."""

    start: torch.Tensor
    spread: torch.Tensor
    divisor: torch.Tensor
    lowest: float

    def normalized(self, values: torch.Tensor) -> torch.Tensor:
        return (values - self.start) / self.divisor + self.lowest

    def range(self) -> ActionRange:
        """Return the range of the values: min and max, or mean +- RANGE_DEVIATIONS deviations."""
        if self.lowest:
            low, high = self.start, self.start + 2 * self.spread
        else:
            low, high = (
                self.start - RANGE_DEVIATIONS * self.spread,
                self.start + RANGE_DEVIATIONS * self.spread,
            )
        return ActionRange(tuple(low.tolist()), tuple(high.tolist()))

    def denormalized(self, values: torch.Tensor) -> torch.Tensor:
        return (values - self.lowest) * self.spread + self.start


def read_scales(
    file: Path, sidecar: Sidecar, device: torch.device, *, missing_allowed: bool
) -> tuple[dict[str, FeatureScale], list[str]]:
    """
    Return the scale of each feature, and the features whose statistics are missing.

    Raises PolicyError for invalid statistics, and for missing ones unless allowed.
    """
    tensors = read_tensors(file) if os.path.isfile(file) else {}
    scales, without = {}, []
    for feature, mode in sidecar.normalization.items():
        names = [f'{feature}.{statistic}' for statistic in MODES[mode]]
        missing = [name for name in names if name not in tensors]
        if missing and not missing_allowed:
            raise PolicyError(
                f'{file} lacks {", ".join(missing)}, which the mode {mode!r} of {feature} needs; '
                "add them, or set 'none' in normalization if the program takes raw values, or "
                'set allow_missing_statistics to serve it without normalising'
            )
        if missing:
            without.append(feature)
        elif names:
            first, second = (_statistic(file, name, tensors[name], sidecar) for name in names)
            scales[feature] = _scale(
                f'{file}: {feature}', mode, first.to(device), second.to(device)
            )
    return scales, without


def _statistic(file: Path, name: str, tensor: torch.Tensor, sidecar: Sidecar) -> torch.Tensor:
    feature = name.rpartition('.')[0]
    counts = {STATE: len(sidecar.state_names), ACTION: len(sidecar.action_names)}
    count = counts.get(feature, 3)
    if tensor.numel() != count or not tensor.is_floating_point() or not tensor.isfinite().all():
        raise PolicyError(
            f'{file}: {name} must be {count} finite numbers, got {tuple(tensor.shape)} of '
            f'{tensor.dtype}; export the statistics of this policy again'
        )
    # images are N x 3 x height x width, the others N x ... x values
    return tensor.float().reshape((count,) if feature in counts else (count, 1, 1))


def _scale(where: str, mode: str, first: torch.Tensor, second: torch.Tensor) -> FeatureScale:
    spread = second if mode == 'mean_std' else second - first
    if (spread < 0).any():
        raise PolicyError(
            f'{where}: std must be at least 0, and max at least min; export the statistics again'
        )
    if mode == 'mean_std':
        return FeatureScale(first, spread, spread + MIN_SPREAD, 0.0)
    half = spread.where(spread > 0, MIN_SPREAD) / 2
    return FeatureScale(first, half, half, -1.0)
