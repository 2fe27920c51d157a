# SPDX-License-Identifier: Apache-2.0
"""A tiny exported policy whose answers can be told beforehand. Needs torch."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
import functools
import io
from pathlib import Path
from typing import Any
from unittest import mock
import warnings

import numpy as np
import pytest
import torch
from torch import nn, Tensor

from lerobot_serve.policies.base import PolicyRequest
from lerobot_serve.policies.exported import export

CAMERA = 'observation.images.front'
ROWS, JOINTS, HEIGHT, WIDTH = 4, 2, 8, 6
SIDECAR: dict[str, Any] = {
    'format_version': 1,
    'kind': 'exported',
    'id': 'tiny',
    'state_names': ['pan.pos', 'lift.pos'],
    'action_names': ['pan.pos', 'lift.pos'],
    'cameras': [{'name': CAMERA, 'height': HEIGHT, 'width': WIDTH}],
    'chunk_size': ROWS,
    'trained_fps': 30,
    'inputs': [CAMERA, 'state'],
    'image_scale': '0..1',
    'batch': 'dynamic',
    'stochastic': False,
    'normalization': {'state': 'mean_std', 'action': 'min_max', CAMERA: 'none'},
}
STATISTICS = {
    'state.mean': torch.tensor([1.0, 2.0]),
    'state.std': torch.tensor([2.0, 4.0]),
    'action.min': torch.tensor([-3.0, 0.0]),
    'action.max': torch.tensor([3.0, 1.0]),
}
WRITE_ONNX = export.write_onnx


class Network(nn.Module):
    """Answers row r with r x state + the image's mean, red counting once, blue three times."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.arange(ROWS).float())
        self.register_buffer('colours', torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, image: Tensor, state: Tensor) -> Tensor:
        seen = torch.einsum('nc,c->n', image.mean((2, 3)), self.colours)
        return state[:, None] * self.rows[:, None] + seen[:, None, None]


def inputs(count: int = 2) -> tuple[Tensor, Tensor]:
    """Return something that the network takes."""
    return torch.zeros(count, 3, HEIGHT, WIDTH), torch.zeros(count, JOINTS)


def exported(network: nn.Module | None = None, *, dynamic: bool = True):
    """Return the network as torch.export makes it; one program for all that take the usual one."""
    return _usual_program(dynamic) if network is None else _program(network, dynamic)


@functools.cache
def _usual_program(dynamic: bool) -> torch.export.ExportedProgram:
    return _program(Network(), dynamic)


def _program(network: nn.Module, dynamic: bool) -> torch.export.ExportedProgram:
    batch = {0: torch.export.Dim('batch', min=1)}
    return torch.export.export(
        network,
        inputs(2 if dynamic else 1),
        dynamic_shapes=(batch, batch) if dynamic else None,
    )


@dataclass(frozen=True)
class Onnx:
    """A program that is to be written as ONNX, which takes a second: once for each program."""

    program: torch.export.ExportedProgram
    written: list[bytes] = field(default_factory=list)

    def write(self, program: torch.export.ExportedProgram, file: Path) -> None:
        if not self.written:
            WRITE_ONNX(program, file)
            self.written.append(file.read_bytes())
        file.write_bytes(self.written[0])


def as_onnx(network: nn.Module | None = None, *, dynamic: bool = True) -> Onnx:
    """Return the network as it is written as ONNX."""
    pytest.importorskip('onnxscript', reason='onnxscript is not installed')
    end_progress_bars()
    return _usual_onnx(dynamic) if network is None else Onnx(_program(network, dynamic))


@functools.cache
def _usual_onnx(dynamic: bool) -> Onnx:
    return Onnx(_usual_program(dynamic))


def write_policy(folder: Path, program: object, **changes: Any) -> str:
    """Write a policy with changes of its sidecar and return its path."""
    sidecar = {**SIDECAR, **changes}
    if not isinstance(program, Onnx):
        return write_quietly(folder, program, sidecar, STATISTICS, onnx=False)
    with mock.patch.object(export, 'write_onnx', program.write):
        return write_quietly(folder, program.program, sidecar, STATISTICS, onnx=True)


def write_quietly(
    folder: Path, program: object, sidecar: Any, statistics: Any, *, onnx: bool
) -> str:
    """Write a policy without the words of its libraries and return its path."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        export.write(folder, program, sidecar, statistics, onnx=onnx)
    return str(folder)


def end_progress_bars() -> None:
    """Let the progress bar of ONNX leave no thread behind."""
    import tqdm

    tqdm.tqdm.monitor_interval = 0


def request(state=(1, 2), colour=(0, 0, 0), size=(HEIGHT, WIDTH), **fields: Any) -> PolicyRequest:
    """Return a request that shows a state and an image of one colour."""
    image = np.empty((*size, 3), np.uint8)
    image[:] = colour
    return PolicyRequest('robot', np.array([state], np.float32), {CAMERA: (image,)}, **fields)


def model_chunk(state, colour, white: float = 1.0) -> np.ndarray:
    """Return what the network answers to a raw state and colour, before it is un-normalised."""
    normalized = (np.array(state) - [1, 2]) / [2, 4]
    seen = np.array(colour) / 255 * white @ [1, 2, 3]
    return np.arange(ROWS)[:, None] * normalized + seen


def robot_chunk(model: np.ndarray) -> np.ndarray:
    """Return a chunk of the network in the robot's units."""
    return (model + 1) / 2 * [6, 1] + [-3, 0]
