# SPDX-License-Identifier: Apache-2.0
"""Check values that are read from a store. Each function raises ValueError. Pure."""

from __future__ import annotations

from math import isfinite


def checked_int(value: object, name: str, high: int) -> int:
    """Return `value`, if it is an integer in [0, high]."""
    if type(value) is not int or not 0 <= value <= high:
        raise ValueError(f'{name} is {value!r}')
    return value


def checked_float(value: object, name: str, high: float, *, low: float = 0.0) -> float:
    """Return `value`, if it is a finite float in [low, high]."""
    if type(value) is not float or not (isfinite(value) and low <= value <= high):
        raise ValueError(f'{name} is {value!r}')
    return value


def checked_flag(value: object, name: str) -> bool:
    """Return `value`, if it is a bool."""
    if type(value) is not bool:
        raise ValueError(f'{name} is {value!r}')
    return value


def checked_text(value: object, limit: int | None = None) -> str:
    """Return `value`, if it is a text of at most `limit` bytes."""
    if not isinstance(value, str):
        raise ValueError(f'expected a text, got {str(value)[:40]!r}')
    if limit is not None and len(value.encode()) > limit:
        raise ValueError(f'expected a text of at most {limit} bytes, got {value[:40]!r}')
    return value
