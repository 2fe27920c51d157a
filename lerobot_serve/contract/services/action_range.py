# SPDX-License-Identifier: Apache-2.0
"""
Encode the range of a policy's actions in its training data: the extension of a response to
OpenSession by which a robot detects a policy with other units before it moves.

JSON of the lowest and the highest value of each action, in the order and the units of
`chunk_robot`. Unknown keys are ignored. Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
import json
from math import isfinite
from typing import Any

from lerobot_serve.contract.records import Extension
from lerobot_serve.contract.services.session import extension_bytes

KEY = 'lerobot_serve.action_range'
BYTES_LIMIT = 1 << 16
ACTIONS_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class ActionRange:
    """The lowest and highest value of each action, in their order. Raises ValueError."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.low) == len(self.high) <= ACTIONS_LIMIT:
            raise ValueError(
                f'action range: low and high must be 1 to {ACTIONS_LIMIT} values each, got '
                f'{len(self.low)} and {len(self.high)}'
            )
        pairs = tuple(zip(self.low, self.high, strict=True))
        if not all(isfinite(low) and isfinite(high) and low <= high for low, high in pairs):
            raise ValueError('action range: each low must be finite and at most its high')

    def union(self, other: ActionRange) -> ActionRange:
        """Return the range that contains both. Raises ValueError for different lengths."""
        lows = zip(self.low, other.low, strict=True)
        highs = zip(self.high, other.high, strict=True)
        return ActionRange(tuple(map(min, lows)), tuple(map(max, highs)))


def encode(action_range: ActionRange) -> bytes:
    content = {'low': list(action_range.low), 'high': list(action_range.high)}
    return json.dumps(content).encode()


def decode(data: bytes) -> ActionRange:
    """Return the range. Raises ValueError with a readable text."""
    if len(data) > BYTES_LIMIT:
        raise ValueError(f'action range: {len(data)} bytes, at most {BYTES_LIMIT} are allowed')
    try:
        content = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f'action range: not JSON in UTF-8 ({str(error)[:80]})') from None
    if not isinstance(content, dict):
        raise ValueError('action range: expected an object with low and high')
    return ActionRange(_numbers(content.get('low')), _numbers(content.get('high')))


def find(extensions: Iterable[Extension]) -> ActionRange | None:
    """Return the range from extensions, None without one. Raises ValueError."""
    data = extension_bytes(extensions, KEY)
    return None if data is None else decode(data)


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(type(each) in (int, float) for each in values):
        raise ValueError('action range: low and high must be lists of numbers')
    try:
        return tuple(map(float, values))
    except OverflowError:
        raise ValueError('action range: a number is too large') from None
