# SPDX-License-Identifier: Apache-2.0
"""
Compute expensive fields of a record in the writer thread; the hash of an image takes about 1 ms
per MB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# key of the deferred fields in a record
DEFERRED = 'later'


@dataclass(frozen=True, slots=True, eq=False)
class DeferredFields:
    """`fields` returns the fields; `bytes` is the memory held until then."""

    fields: Callable[[], dict[str, Any]]
    bytes: int


def resolve_deferred_fields(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with all its fields, except those that are None or an empty text."""
    later = record.get(DEFERRED)
    if not isinstance(later, DeferredFields):
        return record
    known = {name: value for name, value in later.fields().items() if value not in (None, '')}
    whole = record | known
    del whole[DEFERRED]
    return whole
