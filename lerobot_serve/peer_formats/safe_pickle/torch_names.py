# SPDX-License-Identifier: Apache-2.0
"""
The names in the pickle of a torch tensor, and the stream inside it that `torch.save` wrote: five
pickles, then the numbers. Read without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
import math
from struct import Struct
from typing import Any

import numpy as np

from lerobot_serve.peer_formats.safe_pickle import object_opcodes
from lerobot_serve.peer_formats.safe_pickle.reader import Handler, Reader, walk
from lerobot_serve.peer_formats.safe_pickle.values import (
    Arguments,
    Array,
    Budget,
    checked_shape,
    Global,
    native,
    PickleRefused,
    Storage,
)

PROTOCOL_VERSION = 1001
# the first pickle: the number 0x1950A86A20F9469CFC6C
MAGIC_BYTES = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.'
COUNT = Struct('<q').unpack_from
# torch's names of storages -> the type of their numbers, as little-endian
STORAGES: Mapping[str, str] = {
    'FloatStorage': '<f4',
    'DoubleStorage': '<f8',
    'HalfStorage': '<f2',
    'LongStorage': '<i8',
    'IntStorage': '<i4',
    'ByteStorage': '|u1',
}
STORAGE_NAMES: Mapping[tuple[str, str], Global] = {
    ('torch', name): Global(name) for name in STORAGES
}


def persistent_id(reader: Reader, position: int) -> int:
    """Push an empty storage of the announced type; the numbers follow after the pickles."""
    announced = reader.pop()
    if type(announced) is not tuple or len(announced) != 6 or announced[0] != 'storage':
        raise PickleRefused('a tensor refers to what is not a storage')
    kind, count, view = announced[1], announced[4], announced[5]
    if type(kind) is not Global or kind.name not in STORAGES or view is not None:
        raise PickleRefused('a tensor refers to a storage of an unknown type')
    if type(count) is not int or not 0 <= count < 2**31:
        raise PickleRefused('a storage has an impossible number of elements')
    reader.stack.append(Storage(np.empty(0, STORAGES[kind.name])))
    return position


STORAGE_HANDLERS: Mapping[int, Handler] = {**object_opcodes.HANDLERS, ord('Q'): persistent_id}


def load_from_bytes(arguments: Arguments, budget: Budget) -> object:
    """`_load_from_bytes(bytes)`: the storage that torch.save wrote."""
    data = arguments[0] if len(arguments) == 1 else None
    if type(data) is not memoryview or bytes(data[: len(MAGIC_BYTES)]) != MAGIC_BYTES:
        raise PickleRefused('a tensor is not made of what torch.save writes')
    version, position = stored(data, len(MAGIC_BYTES), budget)
    if version != PROTOCOL_VERSION:
        raise PickleRefused('a tensor is of another format of torch.save')
    _, position = stored(data, position, budget)
    storage, position = stored(data, position, budget)
    _, position = stored(data, position, budget)
    if type(storage) is not Storage:
        raise PickleRefused('a tensor has no storage')
    return Storage(numbers_after(data, position, storage.numbers.dtype, budget))


def stored(data: memoryview, position: int, budget: Budget) -> tuple[object, int]:
    return walk(Reader(data, STORAGE_NAMES, budget), STORAGE_HANDLERS, position)


def numbers_after(data: memoryview, position: int, of: np.dtype[Any], budget: Budget) -> Any:
    """Return the numbers at the end of the stream, behind their count."""
    if len(data) < position + 8:
        raise PickleRefused('a tensor is cut off')
    count, rest = COUNT(data, position)[0], data[position + 8 :]
    if count < 0 or count * of.itemsize != rest.nbytes:
        raise PickleRefused(f'a storage of {count} numbers has {rest.nbytes} bytes')
    return native(np.frombuffer(rest, of), budget)


def rebuild_tensor(arguments: Arguments, budget: Budget) -> object:
    """`_rebuild_tensor_v2(storage, offset, size, stride, ...)`: an array that looks into it."""
    if len(arguments) != 6 or type(arguments[0]) is not Storage:
        raise PickleRefused('a tensor is not made as torch makes it')
    numbers, offset = arguments[0].numbers, arguments[1]
    sizes = checked_shape(arguments[2], budget.limits.array_dimensions)
    strides = checked_shape(arguments[3], budget.limits.array_dimensions)
    if type(offset) is not int or offset < 0 or len(sizes) != len(strides):
        raise PickleRefused('a tensor has an impossible offset or stride')
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    # a stride of 0 could make much of little
    if not 0 < math.prod(sizes) <= len(numbers) or last >= len(numbers):
        raise PickleRefused(f'a tensor of {sizes} does not fit its storage of {len(numbers)}')
    steps = [stride * numbers.itemsize for stride in strides]
    return Array(np.lib.stride_tricks.as_strided(numbers[offset:], sizes, steps, writeable=False))


def ordered_dict(arguments: Arguments, budget: Budget) -> object:
    """`OrderedDict()`: the hooks of a tensor, which are none."""
    if arguments:
        raise PickleRefused('a tensor has hooks')
    return None


NAMES: Mapping[tuple[str, str], Global] = {
    ('torch._utils', '_rebuild_tensor_v2'): Global('torch._rebuild_tensor_v2', rebuild_tensor),
    ('torch.storage', '_load_from_bytes'): Global('torch._load_from_bytes', load_from_bytes),
    ('collections', 'OrderedDict'): Global('OrderedDict', ordered_dict),
}
