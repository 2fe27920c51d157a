# SPDX-License-Identifier: Apache-2.0
"""Frames of a websocket: whole messages from any pieces, and typed errors for all else."""

from __future__ import annotations

import contextlib
import itertools

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.gateway.websocket_frames import MASK, masked

from lerobot_serve.gateway.openpi.frames import (
    close_frame,
    CloseCode,
    FRAGMENTS_LIMIT,
    frame,
    FrameError,
    FrameReader,
    Opcode,
)

LIMIT_BYTES = 70_000


class Sink:
    def __init__(self) -> None:
        self.messages: list[tuple[bytes, Opcode]] = []
        self.controls: list[tuple[bytes, Opcode]] = []

    def on_message(self, data, opcode):
        self.messages.append((bytes(data), opcode))

    def on_control(self, data, opcode):
        self.controls.append((data, opcode))


def reading_into(sink: Sink) -> FrameReader:
    return FrameReader(LIMIT_BYTES, sink.on_message, sink.on_control)


def read(*pieces: bytes) -> Sink:
    sink = Sink()
    reader = reading_into(sink)
    for piece in pieces:
        reader.feed(piece)
    return sink


def error(*pieces: bytes) -> FrameError:
    with pytest.raises(FrameError) as refused:
        read(*pieces)
    return refused.value


@pytest.mark.parametrize('size', [0, 1, 3, 4, 125, 126, 65535, 65536, LIMIT_BYTES])
def test_a_message_of_any_size_is_unmasked(size):
    payload = bytes(i % 251 for i in range(size))
    assert read(masked(payload)).messages == [(payload, Opcode.BINARY)]


@given(
    st.lists(st.binary(max_size=300), max_size=5),
    st.lists(st.tuples(st.booleans(), st.integers(1, 400)), min_size=1, max_size=8),
)
def test_pieces_of_any_size_give_the_same_messages_fed_or_received_in_place(payloads, pieces):
    stream, sink = b''.join(map(masked, payloads)), Sink()
    reader = reading_into(sink)
    for is_fed, count in itertools.cycle(pieces):
        if not stream:
            break
        if is_fed:
            reader.feed(stream[:count])
        else:
            space = reader.free_space()
            count = min(count, len(space), len(stream))
            space[:count] = stream[:count]
            reader.received(count)
        stream = stream[count:]
    assert [data for data, _ in sink.messages] == payloads
    assert not reader.is_inside_message


def test_a_large_payload_is_received_where_its_message_is():
    payload, sink = bytes(range(256)) * 256, Sink()
    reader, head = reading_into(sink), masked(payload)[:14]
    reader.feed(head)
    space = reader.free_space()
    assert len(space) == len(payload)
    space[:] = masked(payload)[14:]
    reader.received(len(payload))
    assert sink.messages == [(payload, Opcode.BINARY)]
    # unmasked there
    assert bytes(space) == payload


def test_byte_by_byte_with_a_ping_between_fragments():
    stream = (
        masked(b'one ', Opcode.TEXT, final=False)
        + masked(b'beat', Opcode.PING)
        + masked(b'', Opcode.CONTINUATION, final=False)
        + masked(b'two', Opcode.CONTINUATION)
    )
    found = read(*(bytes([each]) for each in stream))
    assert found.messages == [(b'one two', Opcode.TEXT)]
    assert found.controls == [(b'beat', Opcode.PING)]


def test_it_says_whether_a_message_has_begun():
    whole = masked(b'picture')
    reader = reading_into(Sink())
    for piece, is_inside in ((whole[:1], True), (whole[1:9], True), (whole[9:], False)):
        reader.feed(piece)
        assert reader.is_inside_message is is_inside
    reader.feed(masked(b'', Opcode.BINARY, final=False))
    assert reader.is_inside_message


@pytest.mark.parametrize(
    'announced', [LIMIT_BYTES + 1, 1 << 32, (1 << 64) - 1], ids=['over', '4 GiB', 'all']
)
def test_a_large_message_is_refused_by_its_head(announced):
    head = bytes((0x82, 0xFF)) + announced.to_bytes(8, 'big') + MASK
    assert error(head).code == CloseCode.TOO_BIG


def test_fragments_count_together():
    part = masked(bytes(LIMIT_BYTES // 2), Opcode.BINARY, final=False)
    more = masked(bytes(LIMIT_BYTES // 2), Opcode.CONTINUATION, final=False)
    assert error(part, more, masked(b'x', Opcode.CONTINUATION)).code == CloseCode.TOO_BIG
    tiny = masked(b'', Opcode.CONTINUATION, final=False) * FRAGMENTS_LIMIT
    assert error(masked(b'', Opcode.BINARY, final=False), tiny).code == CloseCode.TOO_BIG


@pytest.mark.parametrize(
    'stream',
    [
        frame(Opcode.BINARY, b'not masked'),
        b'\xc2' + masked(b'compressed')[1:],
        masked(b'x', 3),
        masked(b'x', Opcode.CONTINUATION),
        masked(b'a', final=False) + masked(b'b'),
        masked(bytes(126), Opcode.PING),
        masked(b'x', Opcode.PING, final=False),
    ],
)
def test_a_broken_protocol_is_refused(stream):
    assert error(stream).code == CloseCode.PROTOCOL_ERROR


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(first, second):
    with contextlib.suppress(FrameError):
        read(first, second)


@pytest.mark.parametrize(('size', 'head'), [(125, 2), (126, 4), (65535, 4), (65536, 10)])
def test_the_head_of_a_frame_grows_with_its_size(size, head):
    assert len(frame(Opcode.BINARY, bytes(size))) == head + size


def test_a_close_frame_is_a_control_frame_whatever_its_reason():
    assert len(close_frame(CloseCode.TOO_BIG, 'ä' * 200)) <= 2 + 125
