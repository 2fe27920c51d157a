# SPDX-License-Identifier: Apache-2.0
"""The limits of a gate. Plain data, checked on creation."""

from __future__ import annotations

from dataclasses import dataclass, fields
import math
from typing import Annotated

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.argument import Argument

# limits of safety gates may not be relaxed: these gates cannot be overridden
STRICTEST: dict[str, tuple[str, float]] = {
    'minimum_episodes': ('at least', 30),
    'cage_percent': ('at most', 2.0),
    'cage_ratio': ('at most', 1.1),
    'velocity_distance': ('at most', 0.5),
    'margin': ('at most', 0.1),
}


@dataclass(frozen=True, slots=True)
class GateLimits:
    """
    Each is an option of `lerobot-serve gate`.

    The shares are of chunks, the evidence is that of the canary.
    """

    minimum_episodes: Annotated[int, Argument('distinct episodes that are needed', 'N')] = 30
    cage_percent: Annotated[
        float, Argument('share of chunks that the cage would change [%], at most', 'X')
    ] = 2.0
    cage_ratio: Annotated[float, Argument('or this many times the share of the parent', 'X')] = 1.1
    velocity_distance: Annotated[
        float,
        Argument("distance of the velocities, in spreads of the parent's, at most", 'X'),
    ] = 0.5
    # of all episodes and of any task
    margin: Annotated[float, Argument('deficit of the success rate that is acceptable', 'X')] = 0.1
    latency_ratio: Annotated[
        float, Argument('p99 of the inference time, over that of the parent, at most', 'X')
    ] = 1.5
    memory_ratio: Annotated[
        float, Argument('bytes of the files, over those of the parent, at most', 'X')
    ] = 1.5
    # in all and in any task
    similarity: Annotated[
        float, Argument('cosine of the motions of both policies, at least', 'X')
    ] = 0.85

    def __post_init__(self) -> None:
        for name, (rule, bound) in STRICTEST.items():
            value = getattr(self, name)
            if value < bound if rule == 'at least' else value > bound:
                option = name.replace('_', '-')
                raise ParameterError(
                    f'--{option} belongs to a safety gate and may only be stricter than '
                    f'{bound:g}, got {value:g}'
                )
        for entry in fields(self):
            value = getattr(self, entry.name)
            high = {'margin': 0.5, 'similarity': 1.0, 'cage_percent': 100.0}.get(entry.name)
            if not (math.isfinite(value) and 0 <= value <= (high or math.inf)):
                allowed = f'in [0, {high:g}]' if high else 'finite and at least 0'
                option = entry.name.replace('_', '-')
                raise ParameterError(f'--{option} must be {allowed}, got {value!r}')
