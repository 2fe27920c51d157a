# SPDX-License-Identifier: Apache-2.0
"""
A policy that does what a test says, and tells what it was asked: the kind `steered`.

Its "path" is a folder and options, for example FOLDER?chunk=4&state=recurrent&seconds=0.1; with
`rtc=1` it takes a prefix, `joint=arm` names its joints, `offset=0.1` leads that far away from
where the robot is, `noise=0.1` adds random numbers of that size, and `range=90` says that actions
were between -90 and 90 in training. In the folder are

    options  for a path without options: what stands after the ? otherwise
    events   a line for each thing that happens, written here
    loads    a FIFO: while it is there, loading takes a byte from it first
    turns    a FIFO: while it is there, every prediction takes a byte from it first

What a request is answered with, its task says: `raise`, `nan`, `short` or `fat`; otherwise with a
chunk that stays where the robot is. The warm-up neither waits nor is told.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
import time
from urllib.parse import parse_qsl
import weakref

import numpy as np

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.policies.base import (
    LoadOptions,
    PolicyDescription,
    PolicyError,
    PolicyRequest,
    Prediction,
)

JOINTS = 6
WARM_UP = 'warm-up'


class SteeredPolicy:
    """See the module."""

    def __init__(
        self, folder: Path, options: dict[str, str], description: PolicyDescription
    ) -> None:
        self._folder, self._description = folder, description
        self._seconds, self._offset, self._noise = (
            float(options.get(name, 0)) for name in ('seconds', 'offset', 'noise')
        )
        freed = weakref.finalize(self, tell, folder, 'freed')
        freed.atexit = False

    def describe(self) -> PolicyDescription:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        time.sleep(self._seconds)
        names = [request.session_id for request in requests]
        if names != [WARM_UP]:
            tell(self._folder, ' '.join(['predict', *names]))
            for request in requests:
                tell(self._folder, f'prefix {len(request.prefix_model)}')
            wait_for_a_byte(self._folder / 'turns')
        return [self._answer(request) for request in requests]

    def reset(self, session_id: str) -> None:
        if session_id != WARM_UP:
            tell(self._folder, f'reset {session_id}')

    def _answer(self, request: PolicyRequest) -> Prediction:
        if request.task == 'raise':
            raise RuntimeError('raised on purpose')
        chunk = np.tile(request.state[-1] + self._offset, (self._description.chunk_size, 1))
        chunk += self._noise * np.random.default_rng(request.seed).standard_normal(chunk.shape)
        if request.task == 'nan':
            chunk[-1, -1] = np.nan
        if request.task == 'short':
            chunk = chunk[:, :-1]
        if request.task == 'fat':
            chunk = chunk.astype(np.float64) + 1e300
        return Prediction(chunk, chunk)


def load(loading: LoadOptions) -> SteeredPolicy:
    """Return the policy. Raises PolicyError."""
    name, _, text = loading.path.partition('?')
    folder = Path(name)
    if not folder.is_dir():
        raise PolicyError(f'there is no folder {name}')
    if (file := folder / 'options').is_file():
        text = text or file.read_text()
    options = dict(parse_qsl(text))
    tell(folder, 'load')
    wait_for_a_byte(folder / 'loads')
    names = tuple(f'{options.get("joint", "joint")}_{i}.pos' for i in range(JOINTS))
    description = PolicyDescription(
        policy_type='steered',
        fingerprint=f'steered@{hashlib.sha256(loading.path.encode()).hexdigest()[:16]}',
        state_names=names,
        action_names=names,
        cameras=(),
        chunk_size=int(options.get('chunk', 30)),
        trained_fps=30.0,
        state_class=StateClass[options.get('state', 'chunk_stateless').upper()],
        supports_rtc='rtc' in options,
        stochastic='noise' in options,
        batch_limit=int(options.get('batch_limit', 0)),
        action_range=range_of(options, len(names)),
    )
    return SteeredPolicy(folder, options, description)


def range_of(options: dict[str, str], count: int) -> ActionRange | None:
    if 'range' not in options:
        return None
    most = float(options['range'])
    return ActionRange((-most,) * count, (most,) * count)


def tell(folder: Path, event: str) -> None:
    with (folder / 'events').open('a') as file:
        file.write(f'{event}\n')


def wait_for_a_byte(fifo: Path) -> None:
    """Opened for both directions, since to open one of them waits for the other end."""
    if fifo.exists():
        with fifo.open('r+b', buffering=0) as file:
            file.read(1)
