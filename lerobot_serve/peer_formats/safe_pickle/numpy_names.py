# SPDX-License-Identifier: Apache-2.0
"""The names in numpy's pickles, of numpy 1 and 2, and what a call of each means here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lerobot_serve.peer_formats.safe_pickle.values import (
    Arguments,
    Array,
    array_of,
    Budget,
    Dtype,
    Global,
    LongText,
    PickleRefused,
    quoted,
)

# plain numbers; 'O' (objects), 'V' (records), 'S' and 'U' (texts), 'm' and 'M' (times) are not
DTYPES: Mapping[str, np.dtype[Any]] = {
    code: np.dtype(code)
    for code in ('b1', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8')
}
# UTF-8 begins the characters above 255 with these bytes and higher ones
BEYOND_LATIN1 = 0xC4
EMPTY_BYTES = memoryview(b'')


def reconstruct(arguments: Arguments, budget: Budget) -> object:
    """`_reconstruct(ndarray, (0,), b'b')`: an empty array, to be built."""
    if len(arguments) != 3 or arguments[0] is not NDARRAY or arguments[1] != (0,):
        raise PickleRefused('an array is not made as numpy makes it')
    return Array()


def dtype(arguments: Arguments, budget: Budget) -> object:
    """`dtype('f4', False, True)`: the type of elements, to be built."""
    code = arguments[0] if len(arguments) == 3 else None
    if type(code) is not str or code not in DTYPES:
        given = quoted(code) if type(code) is str else 'no text'
        raise PickleRefused(f'a dtype of {given}; allowed: {", ".join(DTYPES)}')
    return Dtype(DTYPES[code])


def scalar(arguments: Arguments, budget: Budget) -> object:
    """`scalar(dtype, bytes)`: one number, as Python's own."""
    if len(arguments) != 2:
        raise PickleRefused('a number is not made as numpy makes it')
    return array_of(arguments[1], arguments[0], (), 'C', budget).item()


def from_buffer(arguments: Arguments, budget: Budget) -> object:
    """`_frombuffer(bytes, dtype, shape, 'C')`: an array, complete."""
    if len(arguments) != 4 or arguments[3] not in ('C', 'F'):
        raise PickleRefused('an array is not made as numpy makes it')
    data, of, shape, order = arguments
    return Array(array_of(data, of, shape, str(order), budget))


def encode(arguments: Arguments, budget: Budget) -> object:
    """`_codecs.encode(text, 'latin1')`: bytes, as protocol 2 writes them."""
    if len(arguments) != 2 or arguments[1] != 'latin1':
        raise PickleRefused('a text is encoded as something else than latin1')
    text = arguments[0]
    if type(text) is LongText:
        return memoryview(long_latin1(text.view, budget))
    if type(text) is not str or any(ord(character) > 255 for character in text):
        raise PickleRefused('a text that stands for bytes has a character above 255')
    return memoryview(text.encode('latin-1'))


def long_latin1(view: memoryview, budget: Budget) -> bytes:
    """Return the bytes that a long text stands for."""
    budget.copy(view.nbytes)
    # also bounds the decoded text to a byte for each character
    if np.frombuffer(view, np.uint8).max() >= BEYOND_LATIN1:
        raise PickleRefused('a text that stands for bytes has a character above 255')
    return str(view, 'utf-8').encode('latin-1')


def no_bytes(arguments: Arguments, budget: Budget) -> object:
    """`bytes()`: what protocol 2 writes for empty bytes."""
    if arguments:
        raise PickleRefused('bytes are made with arguments')
    return EMPTY_BYTES


NDARRAY = Global('numpy.ndarray')
RECONSTRUCT = Global('numpy._reconstruct', reconstruct)
SCALAR = Global('numpy.scalar', scalar)
FROM_BUFFER = Global('numpy._frombuffer', from_buffer)

NAMES: Mapping[tuple[str, str], Global] = {
    ('numpy', 'ndarray'): NDARRAY,
    ('numpy', 'dtype'): Global('numpy.dtype', dtype),
    ('numpy._core.multiarray', '_reconstruct'): RECONSTRUCT,
    ('numpy.core.multiarray', '_reconstruct'): RECONSTRUCT,
    ('numpy._core.multiarray', 'scalar'): SCALAR,
    ('numpy.core.multiarray', 'scalar'): SCALAR,
    ('numpy._core.numeric', '_frombuffer'): FROM_BUFFER,
    ('numpy.core.numeric', '_frombuffer'): FROM_BUFFER,
    ('_codecs', 'encode'): Global('_codecs.encode', encode),
    ('__builtin__', 'bytes'): Global('bytes', no_bytes),
}
