# SPDX-License-Identifier: Apache-2.0
"""Messages of openpi's client: all that it sends is read, all else is refused within bounds."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st
import msgpack
import numpy as np
import pytest
from support.gateway.openpi_messages import aloha, droid, libero, packed, picture

from lerobot_serve.peer_formats import msgpack_arrays
from lerobot_serve.peer_formats.array_types import PeerFormatError
from lerobot_serve.peer_formats.msgpack_arrays import openpi_array_at, unpack_openpi
from lerobot_serve.peer_formats.msgpack_reader import (
    DEPTH_LIMIT,
    LIST_LIMIT,
    MAP_LIMIT,
    TEXT_LIMIT_BYTES,
    VALUES_LIMIT,
)

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
    with pytest.raises(PeerFormatError) as refused:
        unpack_openpi(data)
    return str(refused.value)


def array_map(**changes: object) -> bytes:
    whole = {b'__ndarray__': True, b'data': bytes(12), b'dtype': '<f4', b'shape': [3]}
    return msgpack.packb(whole | {key.encode(): value for key, value in changes.items()})


@settings(max_examples=50)
@given(VALUES)
def test_reads_what_msgpack_writes(value):
    assert unpack_openpi(msgpack.packb(value)) == value


@pytest.mark.parametrize('example', [aloha, droid, libero])
def test_reads_the_observations_of_the_examples(example):
    def flat(found, prefix=''):
        for key, value in found.items():
            yield from (
                flat(value, f'{key}/') if isinstance(value, dict) else [(f'{prefix}{key}', value)]
            )

    sent, read = example(), unpack_openpi(packed(example()))
    assert {key: np.asarray(value).tolist() for key, value in flat(read)} == {
        key: np.asarray(value).tolist() for key, value in flat(sent)
    }


@pytest.mark.parametrize('dtype', ['u1', 'i8', '<f2', '<f4', '<f8', '>f4', '?', '<u2'])
def test_arrays_are_views_of_the_message(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    data = packed(array)
    read = unpack_openpi(data)
    assert read.dtype == array.dtype and read.tolist() == array.tolist()
    assert np.shares_memory(read, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize('value', [np.float32(1.5), np.int64(-3), np.bool_(True)])
def test_numpy_scalars_are_numbers(value):
    assert unpack_openpi(packed(value)) == value.item()


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
        (array_map(shape=3), 'data must be bytes and shape a list'),
        (array_map(data='abcdefghijkl'), 'data must be bytes and shape a list'),
        (array_map(data=None), 'data must be bytes and shape a list'),
        (msgpack.packb({b'__ndarray__': True}), 'allowed are'),
        (msgpack.packb({b'__npgeneric__': True, b'dtype': '<f4', b'data': 'x'}), 'no number'),
        (msgpack.packb({b'__npgeneric__': True, b'dtype': 'O', b'data': 1}), 'allowed are'),
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
    inner, last = [0] * LIST_LIMIT, VALUES_LIMIT - 3 * (LIST_LIMIT + 2) - 2 - 2
    assert unpack_openpi(msgpack.packb([inner, inner, inner, [0] * last]))
    assert 'more than' in refusal(msgpack.packb([inner, inner, inner, [0] * (last + 1)]))


def test_a_list_or_mapping_counts_as_two_values():
    empty = [[]] * (LIST_LIMIT - 1)
    assert unpack_openpi(msgpack.packb([empty]))
    assert 'more than' in refusal(msgpack.packb([empty, empty]))


def test_lists_and_mappings_have_a_longest_length():
    assert unpack_openpi(msgpack.packb([0] * LIST_LIMIT))
    assert f'at most {LIST_LIMIT}' in refusal(msgpack.packb([0] * (LIST_LIMIT + 1)))
    keys = [str(number) for number in range(MAP_LIMIT + 1)]
    assert unpack_openpi(msgpack.packb(dict.fromkeys(keys[:-1])))
    assert f'at most {MAP_LIMIT}' in refusal(msgpack.packb(dict.fromkeys(keys)))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    with contextlib.suppress(PeerFormatError):
        unpack_openpi(data)


def mutated(whole: bytes, count: int) -> Iterator[bytes]:
    """Return messages with one to four changes."""
    rng = random.Random(1)
    for _ in range(count):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed))
            changed[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 3))
        yield bytes(changed)


def outcome(data: bytes) -> str:
    try:
        return re.sub('0x[0-9a-f]+', '', repr(unpack_openpi(data)))
    except PeerFormatError:
        return 'refused'


def test_a_mutated_message_is_read_or_refused():
    refused = [outcome(data) for data in mutated(packed(SMALL), MUTATIONS)].count('refused')
    assert MUTATIONS / 2 < refused < MUTATIONS


@pytest.mark.parametrize('dtype', ['u1', '<f4', '<i8'])
def test_an_array_is_read_alike_at_once_and_key_by_key(monkeypatch, dtype):
    array = np.arange(300).reshape(2, 150).astype(dtype)
    whole = packed({'a': array, 'b': array[:1, :2], 'c': array[:0], 'd': array[0, 0]})
    found, end = openpi_array_at(memoryview(whole), whole.index(b'\xc4\x0b__ndarray__'))
    assert np.array_equal(found, array) and whole[end:].startswith(b'\xa1b')
    # most changes of a whole message are those of its large array
    small = packed({'b': array[:1, :2], 'c': array[:0], 'd': array[0, 0]})
    changed = [*mutated(whole, 100), *mutated(small, 500)]
    messages = [whole, *changed, *(small[:size] for size in range(len(small)))]
    at_once = [outcome(data) for data in messages]
    monkeypatch.setattr(msgpack_arrays, 'openpi_array_at', None)
    assert [outcome(data) for data in messages] == at_once
    assert 0 < at_once.count('refused') < len(at_once)
