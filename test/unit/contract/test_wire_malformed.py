# SPDX-License-Identifier: Apache-2.0
"""Whatever arrives is either a message or Malformed, and costs no more memory than its bytes."""

from __future__ import annotations

import struct
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.contract.wire_examples import a_chunk, an_observation, content

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.data_path.message_parts import EXTENSIONS_LIMIT, IMAGES_LIMIT
from lerobot_serve.contract.errors import Malformed

OBSERVATION = wire_observation.encode(an_observation())
CHUNK = wire_chunk.encode(a_chunk())
BOTH = [(wire_observation, OBSERVATION), (wire_chunk, CHUNK)]
both = pytest.mark.parametrize('wire, raw', BOTH, ids=['observation', 'chunk'])
# a decoded message is a few objects and views, whatever it claims to hold
MEMORY_LIMIT = 100_000


def read(wire, raw: bytes) -> object | None:
    """Decode; None for Malformed. What was decoded can be sent back, as a server does with ids."""
    try:
        plain = wire.decode(raw)
    except Malformed as error:
        assert error.reason.isidentifier()
        return None
    again = wire.decode(wire.encode(plain))
    assert content(again) == content(plain)
    return plain


def reason(call, raw: bytes) -> str:
    with pytest.raises(Malformed) as caught:
        call(raw)
    return caught.value.reason


def replaced(raw: bytes, at: int, new: bytes) -> bytes:
    return raw[:at] + new + raw[at + len(new) :]


@both
def test_a_whole_message_is_read(wire, raw):
    assert read(wire, raw) is not None


@both
def test_a_message_cut_off_at_any_byte_is_refused(wire, raw):
    for size in range(len(raw)):
        found = reason(wire.decode, raw[:size])
        assert found == ('encapsulation' if size < 2 else 'truncated'), size


@both
def test_bytes_behind_the_known_fields_are_ignored(wire, raw):
    for tail in (b'\x00', b'\xff' * 3, b'of a later version'):
        assert content(wire.decode(raw + tail)) == content(wire.decode(raw))


@both
def test_other_encapsulations_are_refused(wire, raw):
    for start in (b'\x00\x00', b'\x00\x02', b'\x00\x03', b'\x00\x07', b'\x01\x00', b'\xff\xff'):
        assert reason(wire.decode, start + raw[2:]) == 'encapsulation'
        assert reason(read_envelope, start + raw[2:]) == 'encapsulation'


@both
def test_nothing_is_no_message(wire, raw):
    for start in (b'', b'\x00', b'\x00\x01', raw[:4]):
        assert read(wire, start) is None
        with pytest.raises(Malformed):
            read_envelope(start)


@both
def test_another_type_of_message_is_refused(wire, raw):
    right = raw[30]
    for other in set(range(256)) - {right}:
        assert reason(wire.decode, replaced(raw, 30, bytes([other]))) == 'wrong_type'


def test_a_chunk_is_no_observation_nor_the_other_way_round():
    assert reason(wire_observation.decode, CHUNK) == 'wrong_type'
    assert reason(wire_chunk.decode, OBSERVATION) == 'wrong_type'


@both
def test_no_single_byte_does_harm(wire, raw):
    for at in range(len(raw)):
        for new in (0, 1, 0x7F, 0x80, 0xFF, raw[at] ^ 1):
            read(wire, replaced(raw, at, bytes([new])))


flips = st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=8)


@given(st.sampled_from(BOTH), flips)
@settings(max_examples=200, deadline=None)
def test_no_combination_of_bytes_does_harm(message, changes):
    wire, raw = message
    for at, new in changes:
        raw = replaced(raw, at % len(raw), bytes([new]))
    read(wire, raw)


@given(st.sampled_from(BOTH), st.binary(max_size=200), st.booleans())
@settings(max_examples=100, deadline=None)
def test_noise_does_no_harm(message, noise, with_header):
    wire, raw = message
    read(wire, raw[:32] + noise if with_header else noise)


@both
def test_no_number_asks_for_memory(wire, raw):
    """Every place that could be a count gets numbers that would hurt if they were believed."""
    read(wire, raw)
    tracemalloc.start()
    try:
        for at in range(32, len(raw) - 3, 4):
            for number in (2**32 - 1, 2**31, 2**28, 2**20 + 1, 2**20, 4097, 257, 129):
                changed = replaced(raw, at, struct.pack('<I', number))
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                read(wire, changed)
                assert tracemalloc.get_traced_memory()[1] - before < MEMORY_LIMIT, (at, number)
    finally:
        tracemalloc.stop()


def count_before(raw: bytes, content_of: bytes) -> int:
    """Return where the count in front of some bytes is."""
    at = raw.index(content_of)
    assert raw.count(content_of) == 1
    return at - 4


@both
@pytest.mark.parametrize(
    'text',
    ['arm', 'épisode', 'reach', 'act@12', 'front', 'depth', 'vendor.force', 'fine'],
)
def test_every_string_is_checked(wire, raw, text):
    data = text.encode() + b'\x00'
    if data not in raw:
        assert text in ('reach', 'front', 'depth', 'fine')
        return
    at = count_before(raw, data)
    last = at + 4 + len(text.encode())
    assert reason(wire.decode, replaced(raw, at + 4, b'\xff')) == 'not_utf8'
    assert reason(wire.decode, replaced(raw, at + 4, b'\xed\xa0\x80')) == 'not_utf8'
    assert reason(wire.decode, replaced(raw, at + 4, b'\x00')) == 'not_a_string'
    assert reason(wire.decode, replaced(raw, last, b'x')) == 'not_a_string'
    assert reason(wire.decode, replaced(raw, at, struct.pack('<I', 2**31))) == 'oversized'


def test_an_empty_string_may_come_with_or_without_its_closing_byte():
    # a length of zero is not what the standard says, but what some writers do
    for size in (b'\x00\x00\x00\x00', b'\x01\x00\x00\x00\x00\x00\x00\x00'):
        assert read_envelope(OBSERVATION[:32] + size + b'\x02\x00\x00\x00e\x00')[1:] == ('', 'e')


@pytest.mark.parametrize(
    'wire, raw, before, limit',
    [
        (wire_observation, OBSERVATION, b'\x06\x00\x00\x00front\x00', IMAGES_LIMIT),
        (wire_observation, OBSERVATION, b'\x0d\x00\x00\x00vendor.force\x00', EXTENSIONS_LIMIT),
        (wire_chunk, CHUNK, b'\x0d\x00\x00\x00vendor.force\x00', EXTENSIONS_LIMIT),
    ],
    ids=['images', 'extensions', 'extensions of a chunk'],
)
def test_too_many_entries_are_refused_before_the_first_is_read(wire, raw, before, limit):
    at = count_before(raw, before)
    assert reason(wire.decode, replaced(raw, at, struct.pack('<I', limit + 1))) == 'oversized'
    assert reason(wire.decode, replaced(raw, at, struct.pack('<I', limit))) != 'oversized'


@both
def test_a_table_that_is_not_rows_times_columns_is_refused(wire, raw):
    at = raw.index(struct.pack('<III', 2, 3, 6))
    for rows, columns in ((3, 3), (2, 2), (0, 0), (0, 3), (6, 0), (2**32 - 1, 2**32 - 1)):
        changed = replaced(raw, at, struct.pack('<II', rows, columns))
        assert reason(wire.decode, changed) == 'wrong_shape'
    for rows, columns in ((3, 2), (6, 1), (1, 6)):
        changed = replaced(raw, at, struct.pack('<II', rows, columns))
        assert read(wire, changed) is not None


@pytest.mark.parametrize('steps, fits', [(1, True), (3, True), (0, False), (4, False)])
def test_a_state_is_whole_observations(steps, fits):
    # behind the header: two ids, then delay, queue and the number of observations
    at = OBSERVATION.index(struct.pack('<IfI', 3, 0.5, 2)) + 8
    changed = replaced(OBSERVATION, at, struct.pack('<I', steps))
    if fits:
        assert wire_observation.decode(changed).state.shape == (steps, 6 // steps)
    else:
        assert reason(wire_observation.decode, changed) == 'wrong_shape'
