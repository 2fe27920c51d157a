# SPDX-License-Identifier: Apache-2.0
"""
Read and check policy.json of an exported program. No torch, any thread.

The program contains only the network; policy.json describes its inputs and outputs: names, order,
shapes, rate, the scale of images, and the normalization of each feature.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from pathlib import Path

from lerobot_serve.policies.base import PolicyCamera, PolicyError
from lerobot_serve.policies.files.policy_json import (
    cameras,
    check_fields,
    COMMON_FIELDS,
    FieldRule,
    is_size,
    NAMES,
    OBJECT,
    one_of,
    read_fields,
)

KIND = 'exported'
STATE, ACTION = 'state', 'action'
# mode -> the statistics it needs
MODES: dict[str, tuple[str, ...]] = {
    'none': (),
    'mean_std': ('mean', 'std'),
    'min_max': ('min', 'max'),
}
WHITE_LEVELS = {'0..1': 1.0, '0..255': 255.0}


@dataclass(frozen=True, slots=True)
class Sidecar:
    """
    The fields of policy.json.

    `inputs` are the inputs of the program, in order: "state" and the names of cameras. `white` is
    the value of a white pixel before normalization. A `batched` program takes any number of
    requests at once; a `stochastic` one draws random numbers. `normalization` has the mode of
    state, action and each camera. `states` are the shapes, for one request, of the hidden states
    that the program takes after its inputs and returns after its chunk; an episode starts with
    zeros.
    """

    id: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[PolicyCamera, ...]
    chunk_size: int
    trained_fps: float
    inputs: tuple[str, ...]
    white: float
    batched: bool
    stochastic: bool
    normalization: dict[str, str]
    states: tuple[tuple[int, ...], ...] = ()


def read_sidecar(file: Path) -> Sidecar:
    """Return the content of policy.json. Raises PolicyError; it names file, field and rule."""
    values = read_fields(file, SIDECAR_FIELDS, {'states': STATES_RULE})
    seen = cameras(values)
    names = [STATE, *(camera.name for camera in seen)]
    if sorted(values['inputs']) != sorted(names):
        raise PolicyError(
            f'{file}: inputs must be {", ".join(names)}, each once and in the order in which the '
            f'program takes them, got {values["inputs"]}'
        )
    features = {name: one_of(*MODES) for name in (*names, ACTION)}
    check_fields(values['normalization'], features, f'{file}: normalization')
    return Sidecar(
        id=values['id'],
        state_names=tuple(values['state_names']),
        action_names=tuple(values['action_names']),
        cameras=seen,
        chunk_size=values['chunk_size'],
        trained_fps=float(values['trained_fps']),
        inputs=tuple(values['inputs']),
        white=WHITE_LEVELS[values['image_scale']],
        batched=values['batch'] == 'dynamic',
        stochastic=values['stochastic'],
        normalization=values['normalization'],
        states=tuple(map(tuple, values.get('states', []))),
    )


def _is_states(value: object) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= STATE_COUNT_LIMIT
        and all(isinstance(shape, list) and len(shape) <= 4 for shape in value)
        and all(map(is_size, (size for shape in value for size in shape)))
        and sum(math.prod(shape) for shape in value) <= STATE_VALUE_LIMIT
    )


STATE_COUNT_LIMIT, STATE_VALUE_LIMIT = 16, 1 << 20
STATES_RULE = FieldRule(
    f'a list of up to {STATE_COUNT_LIMIT} shapes without the batch, of {STATE_VALUE_LIMIT} values '
    'together',
    _is_states,
)
SIDECAR_FIELDS: dict[str, FieldRule] = {
    **COMMON_FIELDS,
    'kind': one_of(KIND),
    'inputs': NAMES,
    'image_scale': one_of(*WHITE_LEVELS),
    'batch': one_of('dynamic', 1),
    'stochastic': one_of(False, True),
    'normalization': OBJECT,
}
