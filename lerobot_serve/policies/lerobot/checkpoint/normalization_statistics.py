# SPDX-License-Identifier: Apache-2.0
"""
Check the normalization statistics in the state files of processor steps.

LeRobot passes a value without statistics unchanged, so the robot would receive numbers in another
unit. This module raises an error for missing statistics. Thread: the one that loads a policy.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from pathlib import Path

import torch

from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import Checkpoint, ProcessorStepSpec
from lerobot_serve.policies.lerobot.checkpoint.features import ACTION, EMPTY_CAMERA, STATE
from lerobot_serve.policies.runtime.device import read_tensors

REQUIRED_STATISTICS = {
    'MEAN_STD': ('mean', 'std'),
    'MIN_MAX': ('min', 'max'),
    'QUANTILES': ('q01', 'q99'),
    'QUANTILE10': ('q10', 'q90'),
}
# statistics of the range of actions, the best first
RANGE_STATISTICS = (('min', 'max'), ('q01', 'q99'), ('q10', 'q90'))
# standard deviations on each side of the mean
RANGE_DEVIATIONS = 3
# these two normalize without a table of features
GROOT_STEPS = {'groot_pack_inputs_v3': STATE, 'groot_action_unpack_unnormalize_v1': ACTION}


def check_statistics(folder: Checkpoint, allow_missing: bool) -> tuple[str, ...]:
    """Return warnings about the statistics for the operator. Raises PolicyError."""
    notes: list[str] = []
    for step in folder.preprocessor:
        # actions pass the preprocessor only in training
        wanted = [each for each in _normalized_features(step) if each[0] != ACTION]
        notes += _check(step, wanted, allow_missing)
    for step in folder.postprocessor:
        wanted = [each for each in _normalized_features(step) if each[0] == ACTION]
        notes += _check(step, wanted, allow_missing)
    return tuple(dict.fromkeys(notes))


def action_range(folder: Checkpoint) -> ActionRange | None:
    """
    Return the range of the actions of the training data in robot units: min and max, quantiles, or
    mean +- RANGE_DEVIATIONS deviations. None if the files lack it.
    """
    for step in folder.postprocessor:
        held = _read_statistics(step.state_file) if step.state_file else {}
        found = {name[-1]: value for name, value in held.items() if name[0] == ACTION}
        for low, high in RANGE_STATISTICS:
            if low in found and high in found and found[low].ndim == 1:
                return _range(found[low], found[high])
        if 'mean' in found and 'std' in found and found['mean'].ndim == 1:
            spread = RANGE_DEVIATIONS * found['std']
            return _range(found['mean'] - spread, found['mean'] + spread)
    return None


def _range(low: torch.Tensor, high: torch.Tensor) -> ActionRange | None:
    """Return a range; None for values that are none, which another check reports."""
    with contextlib.suppress(ValueError):
        return ActionRange(tuple(low.tolist()), tuple(high.tolist()))
    return None


def _normalized_features(
    step: ProcessorStepSpec,
) -> Iterator[tuple[str, str, tuple[int, ...], bool]]:
    """Yield name, mode, shape and whether it is an image of each value that a step normalizes."""
    if step.registry_name in GROOT_STEPS and step.config.get('normalize_min_max', True):
        yield GROOT_STEPS[step.registry_name], 'MIN_MAX', (), False
    modes, only = step.config.get('norm_map'), step.config.get('normalize_observation_keys')
    if not isinstance(modes, dict):
        return
    for key, feature in step.config.get('features', {}).items():
        mode = modes.get(feature['type'], 'IDENTITY')
        skipped = only is not None and key not in only and key != ACTION
        if mode != 'IDENTITY' and not skipped and not key.startswith(EMPTY_CAMERA):
            yield key, mode, tuple(feature['shape']), feature['type'] == 'VISUAL'


def _check(
    step: ProcessorStepSpec,
    wanted: list[tuple[str, str, tuple[int, ...], bool]],
    allow_missing: bool,
) -> Iterator[str]:
    held = _read_statistics(step.state_file) if wanted and step.state_file else {}
    for key, mode, shape, is_image in wanted:
        where = f'{step.registry_name}: {key}'
        found = {name[-1]: value for name, value in held.items() if name[0] == key}
        if not found:
            yield _missing_text(where, mode, allow_missing)
            continue
        needed = REQUIRED_STATISTICS.get(mode, tuple(found))
        if absent := [name for name in needed if name not in found]:
            raise PolicyError(
                f'{where} has no {" and no ".join(absent)}, which the mode {mode} needs; compute '
                "the data set's statistics again with the installed LeRobot, and train again"
            )
        for name in needed:
            _check_values(f'{where}.{name}', found[name], shape, is_image)
        yield from _zero_spread_warnings(where, mode, found)


def _missing_text(where: str, mode: str, allow_missing: bool) -> str:
    if not allow_missing:
        raise PolicyError(
            f'{where} has no statistics for its mode {mode}, so its values would pass unscaled; '
            'copy the whole directory or train the policy again; set allow_missing_statistics '
            'if this is intended'
        )
    return f'{where} has no statistics: its values pass unscaled (allow_missing_statistics)'


def _check_values(where: str, values: torch.Tensor, shape: tuple[int, ...], image: bool) -> None:
    if not values.isfinite().all():
        raise PolicyError(
            f'{where} has values that are not finite; compute the statistics of the data set again'
        )
    if shape and not _shape_fits(tuple(values.shape), shape, image):
        raise PolicyError(
            f'{where} has the shape {tuple(values.shape)}, but the policy has {shape}; the '
            'statistics are of another policy; copy the whole directory again'
        )


def _shape_fits(values: tuple[int, ...], shape: tuple[int, ...], image: bool) -> bool:
    if not image:
        return values == shape
    try:
        return tuple(torch.broadcast_shapes(values, shape)) == shape
    except RuntimeError:
        return False


def _zero_spread_warnings(where: str, mode: str, found: dict[str, torch.Tensor]) -> Iterator[str]:
    """Yield a warning for a value that never varied in the training data."""
    low, high = (found[name] for name in REQUIRED_STATISTICS.get(mode, (next(iter(found)),) * 2))
    spread = high if mode == 'MEAN_STD' else high - low
    if mode in REQUIRED_STATISTICS and not spread.any():
        yield f'{where} never varied in the training data: its statistics have no spread'


def _read_statistics(file: Path) -> dict[tuple[str, ...], torch.Tensor]:
    tensors = read_tensors(file)
    return {tuple(key.rsplit('.', 1)): value.float() for key, value in tensors.items()}
