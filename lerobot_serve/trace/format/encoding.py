# SPDX-License-Identifier: Apache-2.0
"""
Encode a record as one line of strict JSON, and decode it. Pure functions; any thread.

JSON has no NaN and no infinity: such a value is written as null, and `not_finite` lists the
fields that held one. A float32 is written with the fewest digits that restore it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
import json
import math
from typing import Any

import numpy as np

from lerobot_serve.trace.format.records import fields_of, Record, TraceRecord
from lerobot_serve.trace.format.run_files import LINE_LIMIT

# of a request: its images, and what needs them
IMAGE_FIELDS = ('images', 'replay')


class UnencodableRecord(ValueError):
    """A record that cannot be encoded: an internal error."""


def encode(
    record: TraceRecord | Record, on_left_out: Callable[[int], None] = lambda _: None
) -> bytes:
    """
    Return the line of a record, or of its fields, with its newline. Raises UnencodableRecord.

    A line that would be too long has `left_out_bytes` in place of IMAGE_FIELDS; `on_left_out` gets
    how long it would have been.
    """
    kind = record.get('kind') if isinstance(record, dict) else getattr(record, 'kind', None)
    if not isinstance(kind, str):
        raise UnencodableRecord(f'a record must have a kind, got {type(record).__name__}')
    try:
        whole = record if isinstance(record, dict) else fields_of(record)
        line = _to_line(whole)
        if len(line) > LINE_LIMIT and not whole.keys().isdisjoint(IMAGE_FIELDS):
            on_left_out(len(line))
            line = _line_without_images(whole, len(line))
    except Exception as error:
        # a trace error must never end the traced process
        raise UnencodableRecord(f'record of kind {kind} is not JSON: {error}') from None
    if len(line) > LINE_LIMIT:
        raise UnencodableRecord(f'a line must have at most {LINE_LIMIT} bytes, got {len(line)}')
    return line


def _line_without_images(record: Record, size: int) -> bytes:
    rest = {name: value for name, value in record.items() if name not in IMAGE_FIELDS}
    return _to_line(rest | {'left_out_bytes': size - len(_to_line(rest))})


def decode(line: bytes) -> Record:
    """Return the record. Raises ValueError."""
    try:
        record = _decode(line.decode())
    except RecursionError:
        raise ValueError('too deep') from None
    if not (isinstance(record, dict) and isinstance(record.get('kind'), str)):
        raise ValueError('not a record')
    return record


def _to_line(record: Record) -> bytes:
    # invalid UTF-8 is replaced, not an error
    return _to_text(record).encode(errors='replace') + b'\n'


def _to_text(record: Record) -> str:
    try:
        return _encode(record)
    except ValueError:
        # rare; without non-finite values the first attempt is the fastest path
        fields: set[str] = set()
        finite = _finite(record, None, fields)
        if not fields:
            raise
        return _encode(finite | {'not_finite': sorted(fields)})


def _finite(value: Any, name: str | None, fields: set[str]) -> Any:
    """
    Return the value with None for non-finite numbers, and add the names of their fields to
    `fields`. `name` is None for the record itself.
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
        fields.add(str(name))
        return None
    return value


def _plain(value: Any) -> Any:
    """Return the value in types that JSON supports. Raises TypeError."""
    if isinstance(value, np.ndarray):
        is_short = value.dtype.kind == 'f' and value.dtype.itemsize < 8
        return [_plain(row) for row in value] if is_short and value.ndim else value.tolist()
    if isinstance(value, np.floating):
        # the shortest text that restores this value in its own precision
        return float(str(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Enum):
        return value.name.lower()
    raise TypeError(f'{type(value).__name__} has no JSON')


def _refuse(word: str) -> None:
    raise ValueError(f'{word} is not JSON')


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(',', ':'), default=_plain
).encode
_decode = json.JSONDecoder(parse_constant=_refuse).decode
