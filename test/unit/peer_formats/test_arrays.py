# SPDX-License-Identifier: Apache-2.0
"""Arrays in npy and msgpack: what numpy writes is read, everything else is refused and bounded."""

from __future__ import annotations

import contextlib
import io
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
import msgpack
import numpy as np
import pytest
from support.gateway.openpi_messages import packed, unpacked
from support.policies import remote_peers

from lerobot_serve.peer_formats.array_types import PeerFormatError, read_npy, write_npy
from lerobot_serve.peer_formats.msgpack_arrays import (
    pack_groot,
    pack_openpi,
    unpack_groot,
    unpack_openpi,
)
from lerobot_serve.peer_formats.msgpack_reader import VALUES_LIMIT

NUMBERS = st.sampled_from(['?', 'u1', 'i2', 'u4', 'i8', 'f2', 'f4', 'f8', '>f4', '>i2'])
ARRAYS = npst.arrays(NUMBERS, npst.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
MEMORY_LIMIT_BYTES = 4 << 20


@given(ARRAYS, st.booleans())
@settings(max_examples=40)
def test_what_numpy_writes_is_read(array, fortran):
    array = np.asfortranarray(array) if fortran else array
    found = read_npy(remote_peers.pack_npy(array)['as_npy'])
    assert found.dtype == array.dtype and np.array_equal(found, array, equal_nan=True)
    assert np.array_equal(np.load(io.BytesIO(write_npy(array))), array, equal_nan=True)


@given(ARRAYS)
@settings(max_examples=40)
def test_both_forms_of_msgpack_are_those_of_their_projects(array):
    theirs = packed({'a': {'b': array}})
    assert np.array_equal(unpack_openpi(theirs)['a']['b'], array, equal_nan=True)
    ours = unpacked(pack_openpi({'a': array}))
    assert np.array_equal(ours['a'], array, equal_nan=True)
    theirs = msgpack.packb([{'a': array}, {}], default=remote_peers.pack_npy)
    assert np.array_equal(unpack_groot(theirs)[0]['a'], array, equal_nan=True)
    ours = msgpack.unpackb(pack_groot({'a': array}), object_hook=remote_peers.unpack_npy)
    assert np.array_equal(ours['a'], array, equal_nan=True)


def npy(descr: str, shape: str, data: bytes = b'', order: str = 'False') -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b'\x93NUMPY\x01\x00' + len(header).to_bytes(2, 'little') + header + data


@pytest.mark.parametrize(
    'data',
    [
        b'',
        b'\x93NUMPY\x04\x00',
        npy("'|O'", '()', b'cos\nsystem\n'),
        npy("'<U1'", '()', b'abcd'),
        npy("[('a', '<f4')]", '()', b'abcd'),
        npy("'<f4'", '(100000000000,)', b'abcd'),
        npy("'<f4'", '(99999999999999999999,)'),
        npy("'<f4'", '(-1,)', b''),
        npy("'<f4'", '(2,)', b'abcd'),
        npy("'<f4'", '(' + '1, ' * 9 + ')', b'abcd'),
        npy("'<f4'", "(__import__('os').abort(),)"),
        npy("'<f4'", '()', b'abcd').replace(b"'shape'", b"'shapf'"),
        b'\x93NUMPY\x02\x00' + (1 << 31).to_bytes(4, 'little') + b'{',
    ],
)
def test_what_is_not_a_plain_array_is_refused_before_anything_is_built(data):
    with pytest.raises(PeerFormatError):
        read_npy(data)


def nested(item: bytes, times: int) -> bytes:
    """Return lists of 4096 lists of so many items: some bytes for much memory."""
    return b'\xdc\x10\x00' + (b'\xdc' + times.to_bytes(2, 'big') + item * times) * 4096


BOMBS = {
    # each level announces as many values as there are bytes
    'announced in each level': b'\xdd\x00\x10\x00\x00' * 12 + bytes(1 << 20),
    'empty lists': b'\xdd' + (VALUES_LIMIT - 1).to_bytes(4, 'big') + b'\x90' * (1 << 20),
    'lists of three': b'\x93' * (1 << 20),
    'a long map': b'\xdf' + (1 << 19).to_bytes(4, 'big') + b'\xa1a\x90' * (1 << 19),
    'announced lists': b'\xdd\x00\xff\xff\xff' * 400,
    'deep lists': b'\x91' * 100_000,
    'deep lists of allowed length': b'\xdc\x10\x00' * 500,
    'maps': nested(b'\x80', 4000),
    'lists': nested(b'\x90', 4000),
    'numbers': nested(b'\xcd\xff\xff', 4000),
    'a map with one key': b'\xdf\x00\xff\xff\xff' + b'\xa1a\x01' * 10,
    'an extension': b'\xc7\x03\x05abc',
    'a list as a key': b'\x81\x90\x01',
    'no text': b'\xa1\xff',
    'two messages': b'\x01\x01',
}


@pytest.mark.parametrize('unpack', [unpack_openpi, unpack_groot])
@pytest.mark.parametrize('name', BOMBS)
def test_a_bomb_is_refused_within_a_bound_of_memory(unpack, name):
    tracemalloc.start()
    try:
        with pytest.raises(PeerFormatError):
            unpack(BOMBS[name])
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT_BYTES
    finally:
        tracemalloc.stop()


@given(st.data())
@settings(max_examples=100)
def test_a_damaged_message_is_read_or_refused_and_nothing_else(data):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    unpack, pack = data.draw(
        st.sampled_from([(unpack_openpi, pack_openpi), (unpack_groot, pack_groot)])
    )
    message = bytearray(pack([{'arm': array, 'n': 3, 'text': 'x'}, {}]))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PeerFormatError):
        unpack(bytes(message))
