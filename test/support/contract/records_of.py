# SPDX-License-Identifier: Apache-2.0
"""Records with constants by their words, as messages of robots and routers are made for tests."""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints, TypeVar

from lerobot_serve.contract.types import Constants

T = TypeVar('T')


@cache
def _constants(kind: type) -> dict[str, type[Constants]]:
    hints = get_type_hints(kind)
    return {n: t for n, t in hints.items() if isinstance(t, type) and issubclass(t, Constants)}


def record_of(kind: type[T], **fields: Any) -> T:
    """Return a record; a text in the place of a constant is its word, such as 'clamped'."""
    words = {name: fields[name] for name in _constants(kind).keys() & fields.keys()}
    named = {n: _constants(kind)[n].named(w) for n, w in words.items() if isinstance(w, str)}
    return kind(**(fields | named))
