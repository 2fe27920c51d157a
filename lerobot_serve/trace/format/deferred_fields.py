"""
Fields of a record that cost too much for whoever has something to tell: a hash of a picture takes
a millisecond for each MB. The thread that writes works them out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# where a record holds them
DEFERRED = 'later'


@dataclass(frozen=True, slots=True, eq=False)
class DeferredFields:
    """`fields` returns the fields; so many bytes of memory wait with it."""

    fields: Callable[[], dict[str, Any]]
    bytes: int


def resolve_deferred_fields(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with all its fields, those that are None or an empty text left out."""
    later = record.get(DEFERRED)
    if not isinstance(later, DeferredFields):
        return record
    known = {name: value for name, value in later.fields().items() if value not in (None, '')}
    whole = record | known
    del whole[DEFERRED]
    return whole
