# SPDX-License-Identifier: Apache-2.0
"""A tiny LSTM and an MLP, exported both ways, with torch's own answers to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn, Tensor

from lerobot_serve.policies.base import PolicyRequest
from support.policies import exported_rig

HIDDEN, ROWS, JOINTS = 8, exported_rig.ROWS, exported_rig.JOINTS
SIDECAR: dict[str, Any] = {
    **exported_rig.SIDECAR,
    'id': 'lstm',
    'cameras': [],
    'inputs': ['state'],
    'normalization': {'state': 'mean_std', 'action': 'none'},
    'states': [[1, HIDDEN], [1, HIDDEN]],
}
STATISTICS = {name: exported_rig.STATISTICS[name] for name in ('state.mean', 'state.std')}


class Lstm(nn.Module):
    """One cell: a state and what is remembered, to a chunk and what is remembered then."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(JOINTS, HIDDEN, batch_first=True)
        self.actions = nn.Linear(HIDDEN, ROWS * JOINTS)

    def forward(self, state: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        seen, kept = self.lstm(state[:, None], (hidden.transpose(0, 1), cell.transpose(0, 1)))
        chunk = self.actions(seen[:, 0]).view(-1, ROWS, JOINTS)
        return chunk, *(each.transpose(0, 1) for each in kept)


class Mlp(nn.Module):
    """Remembers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(JOINTS, 16), nn.Tanh(), nn.Linear(16, ROWS * JOINTS))

    def forward(self, state: Tensor) -> Tensor:
        return self.layers(state).view(-1, ROWS, JOINTS)


def network(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return kind().eval()


def build(folder: Path, kind: type[nn.Module], *, onnx: bool) -> str:
    """Write a policy and return its path."""
    states = SIDECAR['states'] if kind is Lstm else []
    inputs = (torch.zeros(2, JOINTS), *(torch.zeros(2, *shape) for shape in states))
    batch = {0: torch.export.Dim('batch', min=1)}
    program = torch.export.export(network(kind), inputs, dynamic_shapes=(batch,) * len(inputs))
    sidecar = SIDECAR if states else {k: v for k, v in SIDECAR.items() if k != 'states'}
    if onnx:
        exported_rig.end_progress_bars()
    return exported_rig.write_quietly(folder, program, sidecar, STATISTICS, onnx=onnx)


class Torch:
    """The network itself, one robot."""

    def __init__(self, kind: type[nn.Module]) -> None:
        self.network = network(kind)
        self.begin()

    def begin(self) -> None:
        shapes = SIDECAR['states'] if isinstance(self.network, Lstm) else []
        self.states = [torch.zeros(1, *shape) for shape in shapes]

    def __call__(self, state: np.ndarray) -> np.ndarray:
        normalized = (torch.from_numpy(state) - STATISTICS['state.mean']) / STATISTICS['state.std']
        with torch.inference_mode():
            outputs = self.network(normalized[None], *self.states)
        chunk, *self.states = outputs if isinstance(outputs, tuple) else (outputs,)
        return chunk[0].numpy()


def request(session: str, state: np.ndarray, **others: Any) -> PolicyRequest:
    return PolicyRequest(session, state[None], **others)
