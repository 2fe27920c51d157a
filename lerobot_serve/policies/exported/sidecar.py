# SPDX-License-Identifier: Apache-2.0
"""
The files of an exported policy, and its policy.json. No torch, any thread.

The program contains only the network; policy.json describes its inputs and outputs: names, order,
shapes, rate, the scale of images, and the normalization of each feature.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from lerobot_serve.files.load import rule
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.exported.onnx_session import OnnxModel, read_model
from lerobot_serve.policies.files.policy_folder import (
    check_folder,
    Names,
    PolicyJson,
    read_policy_json,
    SETTINGS_FILE,
    Size,
)

KIND = 'exported'
EXPORT_FILE, ONNX_FILE = 'program.pt2', 'program.onnx'
STATISTICS_FILE = 'statistics.safetensors'
STATE, ACTION = 'state', 'action'
# mode -> the statistics it needs
MODES: dict[str, tuple[str, ...]] = {
    'none': (),
    'mean_std': ('mean', 'std'),
    'min_max': ('min', 'max'),
}
WHITE_LEVELS = {'0..1': 1.0, '0..255': 255.0}
STATE_COUNT_LIMIT, STATE_VALUE_LIMIT = 16, 1 << 20
Shape = Annotated[tuple[Size, ...], Meta(max_length=4)]
Shapes = Annotated[
    tuple[Shape, ...],
    rule(
        lambda shapes: sum(map(math.prod, shapes)) <= STATE_VALUE_LIMIT,
        f'a list of up to {STATE_COUNT_LIMIT} shapes without the batch, of {STATE_VALUE_LIMIT} '
        'values together',
        min_length=1,
        max_length=STATE_COUNT_LIMIT,
    ),
]


class Sidecar(PolicyJson, frozen=True):
    """
    policy.json of an exported program.

    `inputs` are the inputs of the program, in order: "state" and the names of cameras.
    `image_scale` has the value of a white pixel before normalization. A program with dynamic
    `batch` takes any number of requests at once; a `stochastic` one draws random numbers.
    `normalization` has the mode of state, action and each camera. `states` are the shapes, for one
    request, of the hidden states that the program takes after its inputs and returns after its
    chunk; an episode starts with zeros.
    """

    kind: Literal['exported']
    inputs: Names
    image_scale: Literal['0..1', '0..255']
    batch: Literal['dynamic', 1]
    stochastic: bool
    normalization: dict[str, Literal['none', 'mean_std', 'min_max']]
    states: Shapes = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [STATE, *(camera.name for camera in self.cameras)]
        if sorted(self.inputs) != sorted(names):
            raise ValueError(
                f'inputs must be {", ".join(names)}, each once and in the order in which the '
                f'program takes them, got {list(self.inputs)}'
            )
        features = [*names, ACTION]
        if sorted(self.normalization) != sorted(features):
            raise ValueError(
                f'normalization must be a group of {", ".join(features)}, got '
                f'{", ".join(self.normalization) or "nothing"}'
            )

    @property
    def white(self) -> float:
        return WHITE_LEVELS[self.image_scale]


def policy_files(path: str) -> tuple[Path, Path]:
    """Return policy.json and the program. Raises PolicyError."""
    folder = Path(path)
    if not path or not os.path.isdir(path):
        raise PolicyError(
            f'the path of an exported policy is its folder, with {SETTINGS_FILE} and '
            f'{EXPORT_FILE} or {ONNX_FILE}; {path!r} is not a folder'
        )
    check_folder(folder)
    if not os.path.isfile(folder / SETTINGS_FILE):
        raise PolicyError(f'{folder / SETTINGS_FILE} is missing; copy the whole folder')
    programs = [folder / name for name in (EXPORT_FILE, ONNX_FILE)]
    there = [program for program in programs if os.path.isfile(program)]
    if len(there) != 1:
        script = ' (TorchScript, program.pt, is no longer served)'
        raise PolicyError(
            f'{folder} must hold either {EXPORT_FILE} or {ONNX_FILE}, got '
            f'{"both" if there else "neither"}'
            f'{script if os.path.isfile(folder / "program.pt") else ""}'
        )
    return folder / SETTINGS_FILE, there[0]


def policy_fingerprint(
    program: Path, sidecar: Sidecar, model: OnnxModel | None, name: str = ''
) -> str:
    """
    Return the fingerprint of settings, program, statistics and external tensors; `name` is that
    of the operator. Raises PolicyError.
    """
    folder = program.parent
    files = [folder / SETTINGS_FILE, program]
    if os.path.isfile(folder / STATISTICS_FILE):
        files.append(folder / STATISTICS_FILE)
    if model:
        files += sorted({folder / each.location for each in model.external})
    return sidecar.fingerprint(files, name)


def folder_fingerprint(path: str, name: str = '') -> str:
    """Return the fingerprint of a folder without loading its program. Raises PolicyError."""
    settings, program = policy_files(path)
    model = read_model(program) if program.name == ONNX_FILE else None
    return policy_fingerprint(program, read_policy_json(Sidecar, settings), model, name)
