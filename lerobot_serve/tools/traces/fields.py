# SPDX-License-Identifier: Apache-2.0
"""
Typed access to the fields of a record: a field of another type reads as absent.

Pure functions; any thread. Nothing raises.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, TypeGuard

# one decoded JSON object
Record = dict[str, Any]

# session epochs wrap around
EPOCHS = 1 << 32


def number(record: Record, name: str) -> float | None:
    """Return a finite number, otherwise None."""
    value = record.get(name)
    return float(value) if is_number(value) else None


def integer(record: Record, name: str) -> int | None:
    """Return a whole number, otherwise None."""
    value = record.get(name)
    return value if type(value) is int else None


def text(record: Record, name: str) -> str:
    """Return a text, otherwise an empty one."""
    value = record.get(name)
    return value if type(value) is str else ''


def table(record: Record, name: str) -> Record:
    """Return a table of names and values, otherwise an empty one."""
    value = record.get(name)
    return value if type(value) is dict else {}


def values(record: Record, name: str) -> list[Any] | None:
    """Return a list, otherwise None; its items may have any type."""
    value = record.get(name)
    return value if type(value) is list else None


def policy_names(record: Record) -> list[str]:
    """Return each policy in use as `SLOT ID@HASH`."""
    named = [each for each in values(record, 'policies') or [] if type(each) is dict]
    return [
        f'{text(each, "slot") or "no slot"} {text(each, "policy_id")}@{text(each, "policy_hash")}'
        for each in named
    ]


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether the value is a finite number. Never raises."""
    try:
        return type(value) in (float, int) and isfinite(value)
    except OverflowError:
        # an integer beyond the range of a float
        return False


def is_later_session(epoch: int, than: int) -> bool:
    """Return whether a session is later than another one."""
    return 0 < (epoch - than) % EPOCHS < EPOCHS // 2
