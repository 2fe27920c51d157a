"""
A record as one line of strict JSON, and back. Pure functions; any thread.

JSON has no NaN and no infinity: such a value is written as null, and `not_finite` lists the
fields that held one. A float32 is written with as few digits as bring back the same float32.
"""

from __future__ import annotations

from enum import Enum
import json
import math
from typing import Any

import numpy as np

from lerobot_serve.trace.format.deferred_fields import resolve_deferred_fields
from lerobot_serve.trace.format.schema import LINE_LIMIT


class UnencodableRecord(ValueError):
    """A record that cannot be a line; our mistake, never a peer's."""


def encode(record: dict[str, Any]) -> bytes:
    """Return the line, its end included. Raises Unwritable."""
    if not (isinstance(record, dict) and isinstance(record.get('kind'), str)):
        raise UnencodableRecord(
            f'a record is a dict with a kind, not just a {type(record).__name__}'
        )
    try:
        text = _to_text(resolve_deferred_fields(record))
    except Exception as error:
        # a trace must never end what it traces
        raise UnencodableRecord(f'a record of kind {record["kind"]} is no JSON: {error}') from None
    # a text that has no UTF-8 is no reason to fail
    line = text.encode(errors='replace') + b'\n'
    if len(line) > LINE_LIMIT:
        raise UnencodableRecord(f'a line may have {LINE_LIMIT} bytes, this one has {len(line)}')
    return line


def decode(line: bytes) -> dict[str, Any]:
    """Return the record. Raises ValueError."""
    try:
        record = _decode(line.decode())
    except RecursionError:
        raise ValueError('too deep') from None
    if not (isinstance(record, dict) and isinstance(record.get('kind'), str)):
        raise ValueError('no record')
    return record


def _to_text(record: dict[str, Any]) -> str:
    try:
        return _encode(record)
    except ValueError:
        # rare, and nothing is as fast as to try
        fields: set[str] = set()
        finite = _finite(record, None, fields)
        if not fields:
            raise
        return _encode(finite | {'not_finite': sorted(fields)})


def _finite(value: Any, name: str | None, fields: set[str]) -> Any:
    """
    Return the value with null for what is not finite, whose names are added to `fields`. The
    record itself has no name.
    """
    if isinstance(value, dict):
        return {
            key: _finite(below, str(key) if name is None else f'{name}.{key}', fields)
            for key, below in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_finite(below, name, fields) for below in value]
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, float):
        return _finite(_plain(value), name, fields)
    if isinstance(value, float) and not math.isfinite(value):
        fields.add(name)
        return None
    return value


def _plain(value: Any) -> Any:
    """Return what JSON can say. Raises TypeError."""
    if isinstance(value, np.ndarray):
        is_short = value.dtype.kind == 'f' and value.dtype.itemsize < 8
        return [_plain(row) for row in value] if is_short and value.ndim else value.tolist()
    if isinstance(value, np.floating):
        # the shortest text that brings back this value in its own precision
        return float(str(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Enum):
        return value.name.lower()
    raise TypeError(f'{type(value).__name__} has no JSON')


def _refuse(word: str) -> None:
    raise ValueError(f'{word} is no JSON')


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(',', ':'), default=_plain
).encode
_decode = json.JSONDecoder(parse_constant=_refuse).decode
