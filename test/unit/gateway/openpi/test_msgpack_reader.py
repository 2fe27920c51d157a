# SPDX-License-Identifier: Apache-2.0
"""Messages of openpi's client: all that it sends is read, all else is refused within bounds."""

from __future__ import annotations

import random
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import msgpack
import numpy as np
import pytest
from support.gateway.openpi_messages import aloha, droid, libero, packed, picture

from lerobot_serve.gateway.openpi.msgpack_reader import (
    DEPTH_LIMIT,
    OBJECTS_LIMIT,
    read_message,
    TEXT_LIMIT_BYTES,
)
from lerobot_serve.gateway.predictions import PredictionError, Status

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
MUTATIONS = 10_000
SMALL = {'observation/state': np.arange(3.0), 'observation/image': picture(4, 5, 3), 'prompt': 'é'}


def refusal(data: bytes) -> str:
    with pytest.raises(PredictionError) as refused:
        read_message(data)
    assert refused.value.status is Status.INVALID
    return refused.value.text


def array_map(**changes: object) -> bytes:
    whole = {b'__ndarray__': True, b'data': bytes(12), b'dtype': '<f4', b'shape': [3]}
    return msgpack.packb(whole | {key.encode(): value for key, value in changes.items()})


@settings(max_examples=50)
@given(VALUES)
def test_reads_what_msgpack_writes(value):
    assert read_message(msgpack.packb(value)) == value


@pytest.mark.parametrize('example', [aloha, droid, libero])
def test_reads_the_observations_of_the_examples(example):
    def flat(found, prefix=''):
        for key, value in found.items():
            yield from (
                flat(value, f'{key}/') if isinstance(value, dict) else [(f'{prefix}{key}', value)]
            )

    sent, read = example(), read_message(packed(example()))
    assert {key: np.asarray(value).tolist() for key, value in flat(read)} == {
        key: np.asarray(value).tolist() for key, value in flat(sent)
    }


@pytest.mark.parametrize('dtype', ['u1', 'i8', '<f2', '<f4', '<f8', '>f4', '?', '<u2'])
def test_arrays_are_views_of_the_message(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    data = packed(array)
    read = read_message(data)
    assert read.dtype == array.dtype and read.tolist() == array.tolist()
    assert np.shares_memory(read, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize('value', [np.float32(1.5), np.int64(-3), np.bool_(True)])
def test_numpy_scalars_are_numbers(value):
    assert read_message(packed(value)) == value.item()


@pytest.mark.parametrize(
    ('data', 'expected'),
    [
        (array_map(dtype='|O'), 'allowed are'),
        (array_map(dtype='<V12'), 'allowed are'),
        (array_map(dtype='<c8'), 'allowed are'),
        (array_map(dtype=[['a', '<f4']]), 'allowed are'),
        (array_map(dtype='<M8[ns]'), 'allowed are'),
        (array_map(shape=[4]), '16 bytes, got 12'),
        (array_map(shape=[-3]), 'dimension'),
        (array_map(shape=[2**40, 0]), 'dimension'),
        (array_map(shape=[True, 3]), 'dimension'),
        (array_map(shape=[1.0, 3]), 'dimension'),
        (array_map(shape=[1] * 7), 'at most 6'),
        (array_map(shape=3), 'at most 6'),
        (array_map(data='abcdefghijkl'), 'no bytes'),
        (array_map(data=None), 'no bytes'),
        (msgpack.packb({b'__ndarray__': True}), 'allowed are'),
        (msgpack.packb({b'__npgeneric__': True, b'dtype': '<f4', b'data': 'x'}), 'no number'),
        (msgpack.packb(msgpack.ExtType(4, b'code')), 'extension'),
        (b'\xc1', 'no msgpack'),
        (b'', 'cut off'),
        (b'\xdd\xff\xff\xff\xff', 'too many'),
        (b'\xdf\xff\xff\xff\xff', 'too many'),
        (b'\xc6\xff\xff\xff\xff', 'announced'),
        (b'\xdb\xff\xff\xff\xff', 'text has'),
        (msgpack.packb('x' * (TEXT_LIMIT_BYTES + 1)), 'text has'),
        (b'\xa1\xff', 'UTF-8'),
        (b'\x91' * (DEPTH_LIMIT + 1) + b'\x00', 'nested'),
        (b'\x01\x01', 'follow its end'),
        (b'\x82\xa1a\x01\xa1a\x02', 'twice'),
        (b'\x82\xa1a\x01\xc4\x01a\x02', 'twice'),
        (b'\x81\x01\x01', 'key'),
        (b'\x81\x91\x01\x01', 'key'),
        (msgpack.packb({'k' * 300: 1}), 'key'),
    ],
)
def test_refuses(data, expected):
    assert expected in refusal(data)


def test_a_picture_as_lists_is_refused_with_a_remedy():
    text = refusal(msgpack.packb([[0] * 200] * 200))
    assert 'numpy arrays' in text or 'too many' in text


def test_values_of_nested_lists_count_together():
    inner = 300
    outer = OBJECTS_LIMIT - inner - 2
    assert read_message(msgpack.packb([[0] * inner, *[0] * (outer - 1)]))
    assert 'more than' in refusal(msgpack.packb([[0] * inner, [0] * inner, *[0] * (outer - 2)]))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        read_message(data)
    except PredictionError as error:
        assert error.status is Status.INVALID


def test_a_mutated_message_is_read_or_refused():
    rng, whole, refused = random.Random(1), packed(SMALL), 0
    for _ in range(MUTATIONS):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed))
            changed[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 3))
        try:
            read_message(bytes(changed))
        except PredictionError as error:
            assert error.status is Status.INVALID
            refused += 1
    assert MUTATIONS / 2 < refused < MUTATIONS


@pytest.mark.parametrize(
    'data',
    [
        # each level announces as many values as there are bytes
        b''.join(b'\xdd' + (1 << 20).to_bytes(4, 'big') for _ in range(12)) + bytes(1 << 20),
        b'\xdd' + (OBJECTS_LIMIT - 1).to_bytes(4, 'big') + b'\x90' * (1 << 20),
        b'\x93' * (1 << 20),
        b'\xdf' + (1 << 19).to_bytes(4, 'big') + b'\xa1a\x90' * (1 << 19),
    ],
    ids=['announced', 'empty lists', 'deep', 'map'],
)
def test_a_hostile_message_costs_little_memory(data):
    tracemalloc.start()
    try:
        refusal(data)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
