# SPDX-License-Identifier: Apache-2.0
"""What a router reads and changes of messages that it forwards: right, or Malformed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.contract.wire_examples import a_chunk, an_observation, chunks, patient
from support.replacing import replace

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk, read_reply_summary
from lerobot_serve.contract.data_path.header import FLAGS_AT, read_envelope, with_flags
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.schema import Flag

CHUNK = wire_chunk.encode(a_chunk())
OBSERVATION = wire_observation.encode(an_observation())


def told(chunk: Chunk) -> tuple:
    start = chunk.header, chunk.client_id, chunk.episode_id
    times = chunk.queue_wait_ms, chunk.processing_ms, chunk.inference_ms
    return start, chunk.seed, chunk.status, chunk.slot, chunk.policy, *times


@given(chunks)
@patient
def test_a_peek_at_an_answer_says_what_decoding_it_says(chunk):
    raw = wire_chunk.encode(chunk)
    assert read_reply_summary(raw) == told(wire_chunk.decode(raw)) == told(chunk)
    assert read_reply_summary(raw).start == read_envelope(raw)


def test_a_peek_needs_nothing_behind_the_policy():
    end = CHUNK.index(b'act@12\0') + len(b'act@12\0')
    assert read_reply_summary(CHUNK[:end]) == read_reply_summary(CHUNK)
    for size in range(end):
        with pytest.raises(Malformed):
            read_reply_summary(CHUNK[:size])


def test_an_observation_is_no_answer():
    with pytest.raises(Malformed) as refused:
        read_reply_summary(OBSERVATION)
    assert refused.value.reason == 'wrong_type'


flips = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=8)


@given(st.sampled_from([CHUNK, OBSERVATION]), flips, st.integers(0, 300), st.binary(max_size=80))
@settings(max_examples=300, deadline=None)
def test_hostile_bytes_do_no_harm(raw, changes, size, noise):
    altered = bytearray(raw)
    for at, new in changes:
        altered[at % len(raw)] = new
    for hostile in (bytes(altered[:size]), bytes(altered[:size]) + noise, noise):
        for read in (read_reply_summary, read_envelope):
            try:
                read(hostile)
            except Malformed as error:
                assert error.reason.isidentifier()


@given(st.sampled_from([CHUNK, OBSERVATION]), st.integers(0, 255))
def test_flags_are_added_and_all_else_stays(raw, flags):
    flagged = with_flags(raw, flags)
    assert type(flagged) is bytes
    assert flagged[FLAGS_AT] == raw[FLAGS_AT] | flags
    assert flagged[:FLAGS_AT] + flagged[FLAGS_AT + 1 :] == raw[:FLAGS_AT] + raw[FLAGS_AT + 1 :]
    assert read_envelope(flagged).header == replace(
        read_envelope(raw).header, flags=read_envelope(raw).header.flags | flags
    )


def test_the_flags_of_a_chunk_can_be_read_after_they_were_added():
    flagged = with_flags(CHUNK, Flag.POLICY_CHANGED | Flag.STATE_LOST)
    assert wire_chunk.decode(flagged).header.flags == 2 | 8
    assert told(wire_chunk.decode(flagged))[1:] == told(a_chunk())[1:]


def test_what_has_no_header_gets_no_flags():
    for size in range(FLAGS_AT + 1):
        with pytest.raises(Malformed):
            with_flags(CHUNK[:size], 1)
    assert len(with_flags(CHUNK[: FLAGS_AT + 1], 1)) == FLAGS_AT + 1
