# SPDX-License-Identifier: Apache-2.0
"""The limits of a gate. Plain data, checked on creation."""

from __future__ import annotations

from dataclasses import dataclass, fields
import math

from lerobot_serve.parameters import ParameterError

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
    See the fields; each is an option of `lerobot-serve gate`.

    The shares are of chunks, the evidence is that of the canary.
    """

    # distinct episodes without which nothing is decided
    minimum_episodes: int = 30
    # chunks that the safety cage would change [%]: at most this, or the ratio times the parent's
    cage_percent: float = 2.0
    cage_ratio: float = 1.1
    # largest distance of the distributions of velocity of any action, in spreads of the parent's
    velocity_distance: float = 0.5
    # largest deficit of the success rate, of all episodes and of any task
    margin: float = 0.1
    latency_ratio: float = 1.5
    memory_ratio: float = 1.5
    # smallest cosine of the motions of both policies, in all and in any task
    similarity: float = 0.85

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
