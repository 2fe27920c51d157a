# SPDX-License-Identifier: Apache-2.0
"""What a later version may add without breaking this one, and how versions are agreed on."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
import numpy as np
import pytest
from support.contract.wire_examples import (
    a_chunk,
    an_observation,
    chunks,
    content,
    observations,
    patient,
)
from support.replacing import replace

from lerobot_serve.contract import codec, records
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header, HEADER_LAYOUT, read_envelope
from lerobot_serve.contract.limits import (
    negotiate_version,
    SCHEMA_VERSION,
    SCHEMA_VERSION_MIN,
    SchemaVersionRefused,
)
from lerobot_serve.contract.records import Extension
from lerobot_serve.contract.schema import Flag, MsgType

BOTH = [(wire_observation, an_observation()), (wire_chunk, a_chunk())]
both = pytest.mark.parametrize('wire, plain', BOTH, ids=['observation', 'chunk'])


def sent(wire, plain):
    return wire.decode(wire.encode(plain))


@both
def test_unknown_extensions_change_nothing_else(wire, plain):
    unknown = (Extension('a.later.version', b'\xff' * 9), Extension('', b''))
    arrived = sent(wire, replace(plain, extensions=unknown))
    assert [(e.key, bytes(e.value)) for e in arrived.extensions] == [
        ('a.later.version', b'\xff' * 9),
        ('', b''),
    ]
    assert content(replace(arrived, extensions=())) == content(replace(plain, extensions=()))


@both
@pytest.mark.parametrize('flags', [0x10, 0x80, 0xF0, 0xFF])
def test_unknown_flag_bits_pass_through(wire, plain, flags):
    assert flags & ~int(~Flag.NONE), 'some of these bits must have no name'
    arrived = sent(wire, replace(plain, header=replace(plain.header, flags=flags)))
    assert arrived.header.flags == flags
    assert read_envelope(wire.encode(arrived)).header.flags == flags


@both
def test_another_schema_version_can_be_read(wire, plain):
    # the version is refused when a session is opened, not with every message
    later = replace(plain, header=replace(plain.header, schema_version=65535))
    assert sent(wire, later).header.schema_version == 65535


def test_an_unknown_status_passes_through():
    assert sent(wire_chunk, replace(a_chunk(), status=255)).status == 255


def test_an_unknown_codec_passes_through():
    image = replace(an_observation().images[0], codec=77, channels=9, channel_bytes=0)
    arrived = sent(wire_observation, replace(an_observation(), images=(image,)))
    assert content(arrived.images[0]) == content(image)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_a_state_that_is_no_number_can_be_read(value):
    # the server refuses it, with the name of the joint
    state = np.full((1, 3), value, np.float32)
    arrived = sent(wire_observation, replace(an_observation(), state=state))
    assert np.array_equal(arrived.state, state, equal_nan=True)


@pytest.mark.parametrize('version', range(SCHEMA_VERSION_MIN, SCHEMA_VERSION + 1))
def test_a_version_in_the_range_is_agreed_on(version):
    assert negotiate_version(version) == version


@given(st.integers(0, 65535))
@settings(max_examples=100, deadline=None)
def test_every_other_version_is_refused_with_its_side_and_both_numbers(version):
    if SCHEMA_VERSION_MIN <= version <= SCHEMA_VERSION:
        return
    with pytest.raises(SchemaVersionRefused) as caught:
        negotiate_version(version)
    assert caught.value.is_client_newer == (version > SCHEMA_VERSION)
    assert f'schema version {version}, this server' in str(caught.value)
    assert f'{SCHEMA_VERSION_MIN} to {SCHEMA_VERSION};' in str(caught.value)


def test_the_side_to_update_is_named():
    with pytest.raises(SchemaVersionRefused, match='update the server'):
        negotiate_version(SCHEMA_VERSION + 1)
    with pytest.raises(SchemaVersionRefused, match='update the client'):
        negotiate_version(SCHEMA_VERSION_MIN - 1)


def test_a_range_of_versions_is_accepted_as_a_whole(monkeypatch):
    monkeypatch.setattr('lerobot_serve.contract.limits.SCHEMA_VERSION_MIN', 3)
    monkeypatch.setattr('lerobot_serve.contract.limits.SCHEMA_VERSION', 5)
    assert [negotiate_version(version) for version in (3, 4, 5)] == [3, 4, 5]
    for version, is_client_newer in ((2, False), (6, True)):
        with pytest.raises(SchemaVersionRefused, match='3 to 5') as caught:
            negotiate_version(version)
        assert caught.value.is_client_newer is is_client_newer


# the data path reads and writes the bytes of the records, and the golden ones; test/ros compares
# both with the middleware


def facts(thing: object) -> object:
    """Return the fields of a message by their names, whatever class it has."""
    if isinstance(thing, records.ActionArray):
        return (thing.rows, thing.columns), thing.data.tobytes()
    if isinstance(thing, Struct):
        return {name: facts(getattr(thing, name)) for name in thing.__struct_fields__}
    if is_dataclass(thing):
        return {each.name: facts(getattr(thing, each.name)) for each in fields(thing)}
    return tuple(map(facts, thing)) if isinstance(thing, tuple) else content(thing)


def check_record(kind: type, raw: bytes, expected: dict[str, object]) -> None:
    record = codec.decode(kind, raw)
    assert facts(record) == expected
    assert codec.encode(record) == raw


@patient
@given(observations)
def test_an_observation_has_the_bytes_of_its_record(plain):
    state = {'state': facts(plain.state.reshape(-1)), 'observation_steps': len(plain.state)}
    check_record(records.Observation, wire_observation.encode(plain), facts(plain) | state)


@patient
@given(chunks)
def test_a_chunk_has_the_bytes_of_its_record(plain):
    expected = facts(plain)
    for name in ('model', 'robot'):
        expected[f'chunk_{name}'] = expected.pop(name)
    check_record(records.ActionChunk, wire_chunk.encode(plain), expected)


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
