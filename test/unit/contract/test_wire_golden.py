# SPDX-License-Identifier: Apache-2.0
"""The data path reads and writes the golden bytes; test/ros checks these with the middleware."""

from __future__ import annotations

import pytest
from support.contract.wire_examples import a_chunk, an_observation

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header, HEADER_LAYOUT, read_envelope
from lerobot_serve.contract.schema import MsgType

MSG_TYPE_AT = 30


def golden(repository, name: str, msg_type: MsgType) -> bytes:
    """Return the golden bytes, in which the type is a number like any other, with a true type."""
    data = bytes.fromhex((repository / 'test' / 'golden' / f'{name}.hex').read_text())
    return data[:MSG_TYPE_AT] + bytes([msg_type]) + data[MSG_TYPE_AT + 1 :]


def test_an_observation_is_read_and_written_as_agreed(repository):
    data = golden(repository, 'Observation', MsgType.OBSERVATION)
    observation = wire_observation.decode(data)
    assert wire_observation.encode(observation) == data
    assert observation.state.shape == (2, 1)
    assert observation.prefix_model.shape == (1, 2)
    assert len(observation.images) == len(observation.extensions) == 2


def test_a_chunk_is_read_and_written_as_agreed(repository):
    data = golden(repository, 'ActionChunk', MsgType.CHUNK)
    chunk = wire_chunk.decode(data)
    assert wire_chunk.encode(chunk) == data
    assert chunk.robot.shape == chunk.model.shape == (1, 2)
    # model comes first on the wire and counts up
    assert chunk.model[0, 0] < chunk.robot[0, 0]


@pytest.mark.parametrize('name', ['Observation', 'ActionChunk'])
def test_the_header_lies_where_the_contract_says(repository, name):
    data = golden(repository, name, MsgType.CHUNK)
    header = read_envelope(data).header
    for field, begin, end in (
        ('seq', 4, 12),
        ('client_mono_ns', 12, 20),
        ('session_epoch', 20, 24),
        ('episode', 24, 28),
        ('schema_version', 28, 30),
        ('msg_type', 30, 31),
        ('flags', 31, 32),
    ):
        assert int.from_bytes(data[begin:end], 'little') == getattr(header, field), field
    assert HEADER_LAYOUT.size == 28


def test_peek_reads_the_same_start_as_decode():
    for wire, plain in ((wire_observation, an_observation()), (wire_chunk, a_chunk())):
        raw = wire.encode(plain)
        assert read_envelope(raw) == (plain.header, plain.client_id, plain.episode_id)
        assert wire.decode(raw).header == plain.header


def test_peek_needs_no_more_than_the_start():
    raw = wire_observation.encode(an_observation())
    start = raw.index('épisode'.encode()) + len('épisode'.encode()) + 1
    assert read_envelope(raw[:start]) == read_envelope(raw)


def test_an_answer_echoes_the_header_with_its_own_type_and_flags():
    asked = Header(1, 2, 3, 4, 5, int(MsgType.OBSERVATION), 0xFF)
    assert asked.for_reply(4) == Header(1, 2, 3, 4, 5, int(MsgType.CHUNK), 4)


def test_arrays_of_a_decoded_message_are_views_of_its_bytes():
    observation = wire_observation.decode(wire_observation.encode(an_observation()))
    for values in (observation.state, observation.prefix_robot, observation.images[0].data):
        assert not values.flags.owndata
        assert not values.flags.writeable
