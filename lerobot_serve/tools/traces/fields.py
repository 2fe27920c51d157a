# SPDX-License-Identifier: Apache-2.0
"""
Reads a record whatever is in it: a field that is missing or of another type reads as absent (None,
empty text, empty table, False). Pure functions; any thread.
"""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import Any, get_args, get_origin, TypeGuard, Union

import msgspec

from lerobot_serve.trace.format.encoding import decode
from lerobot_serve.trace.format.records import KINDS, OtherRecord, Record, TraceRecord

# session epochs wrap around
EPOCHS = 1 << 32


def read_record(line: bytes) -> TraceRecord:
    """Return the record of a line. Raises ValueError."""
    try:
        return _decoder().decode(line.decode())
    except (ValueError, RecursionError):
        # an unknown kind, a damaged field, or no record
        return record_of(decode(line))


def record_of(content: Record) -> TraceRecord:
    """Return the record that some fields are; each that cannot be read is absent. Never raises."""
    kind = KINDS.get(content['kind'], OtherRecord)
    found = {
        each.name: _value(content[each.encode_name], each.type)
        if each.encode_name in content
        else _absent(each.type)
        for each in msgspec.structs.fields(kind)
        if each.required or each.encode_name in content
    }
    return kind(**found)


@cache
def _decoder() -> msgspec.json.Decoder[TraceRecord]:
    kinds: Any = Union[tuple(KINDS.values())]  # noqa: UP007
    return msgspec.json.Decoder(kinds)


def _value(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError):
        # a list that cannot be read is there
        lists = [list for each in get_args(kind) if get_origin(each) is list]
        return [] if lists else _absent(kind)


def _absent(kind: Any) -> Any:
    """Return what stands for a value that is not there."""
    empty: dict[Any, Any] = {str: '', bool: False, dict: {}}
    return empty.get(get_origin(kind) or kind)


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


def policy_names(policies: list[Any] | None) -> list[str]:
    """Return each policy in use as `SLOT ID@HASH`."""
    named = [each for each in policies or [] if type(each) is dict]
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
