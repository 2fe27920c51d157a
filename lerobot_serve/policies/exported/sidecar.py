# SPDX-License-Identifier: Apache-2.0
"""
Read and check policy.json of an exported program. No torch, any thread.

The program contains only the network; policy.json describes its inputs and outputs: names, order,
shapes, rate, the scale of images, and the normalization of each feature.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from msgspec import Meta

from lerobot_serve.files.load import rule
from lerobot_serve.policies.files.policy_json import Names, PolicyJson, Size

KIND = 'exported'
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
