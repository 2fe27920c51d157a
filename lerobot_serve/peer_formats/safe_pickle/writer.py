# SPDX-License-Identifier: Apache-2.0
"""
Write LeRobot's three pickled messages without LeRobot and torch.

A RobotClient gets a list of TimedAction with torch tensors: one tensor of the whole chunk by
`torch.from_numpy`, its rows by `torch.unbind`; LeRobot's own server writes the whole storage with
every row.

Thread: any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import Float32Array

MODULE = 'lerobot.async_inference.helpers'
FLOAT64, INT32 = Struct('>d').pack, Struct('<i').pack
UINT32, UINT64 = Struct('<I').pack, Struct('<Q').pack
EMPTY_TUPLE, MARK, STACK_GLOBAL, REDUCE, BUILD = b')', b'(', b'\x93', b'R', b'b'
NEW_OBJECT, PROTOCOL_4 = b'\x81', b'\x80\x04'
TUPLE1, TUPLE2, TUPLE3, TUPLE = b'\x85', b'\x86', b'\x87', b't'
NONE, TRUE, FALSE = b'N', b'\x88', b'\x89'


def text(value: str) -> bytes:
    data = value.encode()
    return b'X' + UINT32(len(data)) + data


def integer(value: int) -> bytes:
    """Return an integer of up to 64 bits."""
    if -(2**31) <= value < 2**31:
        return b'J' + INT32(value)
    return b'\x8a\x08' + value.to_bytes(8, 'little', signed=True)


def number(value: float) -> bytes:
    return b'G' + FLOAT64(value)


def name(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + STACK_GLOBAL


def put(index: int) -> bytes:
    """Return what keeps the last value for `get`."""
    return b'q' + bytes((index,))


def get(index: int) -> bytes:
    return b'h' + bytes((index,))


def array(values: NDArray[Any], kind: str = '<f4') -> bytes:
    """Return what numpy writes for an array of a kind."""
    native = np.ascontiguousarray(values, kind)
    shape = MARK + b''.join(integer(size) for size in native.shape) + TUPLE
    order = MARK + integer(3) + text(kind[0]) + NONE * 3 + integer(-1) * 2 + integer(0) + TUPLE
    dtype = name('numpy', 'dtype') + text(kind[1:]) + FALSE + TRUE + TUPLE3 + REDUCE
    empty = name('numpy', 'ndarray') + integer(0) + TUPLE1 + b'C\x01b' + TUPLE3
    data = b'\x8e' + UINT64(native.nbytes) + native.tobytes()
    made = name('numpy._core.multiarray', '_reconstruct') + empty + REDUCE
    return made + MARK + integer(1) + shape + dtype + order + BUILD + FALSE + data + TUPLE + BUILD


def rows_of_tensor(values: Float32Array) -> bytes:
    """Return what builds a tuple of tensors, one for each row."""
    tensor = name('torch', 'from_numpy') + array(values) + TUPLE1 + REDUCE
    return name('torch', 'unbind') + tensor + TUPLE1 + REDUCE


ROWS, GET_ITEM, ACTION, TIMESTAMP, TIMESTEP, VALUE = range(6)
CONSTANTS = (
    (GET_ITEM, name('_operator', 'getitem')),
    (ACTION, name(MODULE, 'TimedAction')),
    (TIMESTAMP, text('timestamp')),
    (TIMESTEP, text('timestep')),
    (VALUE, text('action')),
)
BEFORE_TIMESTAMP = get(ACTION) + EMPTY_TUPLE + NEW_OBJECT + b'}' + MARK + get(TIMESTAMP)
BEFORE_ROW = get(VALUE) + get(GET_ITEM) + get(ROWS)
AFTER_ROW = TUPLE2 + REDUCE + b'u' + BUILD


def write_actions(actions: Float32Array, timestamp: float, timestep: int, step_s: float) -> bytes:
    """
    Return the pickle of a chunk of (steps, dims) actions; the first is of the given timestamp and
    timestep, each later one of a step later.
    """
    keep = b''.join(value + put(index) + b'0' for index, value in CONSTANTS)
    head = PROTOCOL_4 + rows_of_tensor(actions) + put(ROWS) + b'0' + keep + b']' + MARK
    rows = timed_rows(len(actions), timestamp, timestep, step_s)
    return head + b''.join(rows) + b'e.'


def timed_rows(count: int, timestamp: float, timestep: int, step_s: float) -> Iterable[bytes]:
    for row in range(count):
        yield BEFORE_TIMESTAMP
        yield number(timestamp + row * step_s)
        yield get(TIMESTEP)
        yield integer(timestep + row)
        yield BEFORE_ROW
        yield integer(row)
        yield AFTER_ROW


def write_policy_config(fields: Mapping[str, Any]) -> bytes:
    """Return the pickle of a RemotePolicyConfig."""
    return record('RemotePolicyConfig', fields)


def write_observation(
    values: Mapping[str, Any], *, timestamp: float, timestep: int, must_go: bool
) -> bytes:
    """Return the pickle of a TimedObservation; images are arrays of uint8."""
    timed = {'timestamp': timestamp, 'timestep': timestep}
    return record('TimedObservation', {**timed, 'observation': values, 'must_go': must_go})


def record(class_name: str, fields: Mapping[str, Any]) -> bytes:
    made = name(MODULE, class_name) + EMPTY_TUPLE + NEW_OBJECT + plain(fields) + BUILD
    return PROTOCOL_4 + made + b'.'


def plain(value: Any) -> bytes:
    """Return the opcodes that build a plain value or an array of uint8."""
    if isinstance(value, Mapping):
        items = b''.join(plain(key) + plain(item) for key, item in value.items())
        return b'}' + MARK + items + b'u'
    if isinstance(value, (list, tuple)):
        items = MARK + b''.join(map(plain, value))
        return b']' + items + b'e' if isinstance(value, list) else items + TUPLE
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, float):
        return number(value)
    return array(value, '|u1')
