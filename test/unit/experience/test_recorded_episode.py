# SPDX-License-Identifier: Apache-2.0
"""RecordedEpisode as bytes and back, and what no message may hold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.contract import records
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.experience.recorded_episode import (
    decode_recorded,
    encode_recorded,
    LAST_NS,
    OUTCOMES,
    RecordedEpisode,
    word_of,
)

EXAMPLE = RecordedEpisode(
    stamp_ns=1_700_000_000_123_456_789,
    client_id='arm_1',
    episode_id='ep-1',
    outcome='success',
    control_steps=10,
    control_steps_person=3,
    policies=('p@1', 'q@2'),
    host='desk',
    path='/bags/arm_1_ep-1',
    size_bytes=1 << 40,
    sha256='0123456789abcdef' * 4,
)


def words(limit: int) -> st.SearchStrategy[str]:
    letters = st.characters(codec='utf-8', exclude_characters='\0')
    return st.text(letters, max_size=limit).filter(lambda text: len(text.encode()) <= limit)


@st.composite
def episodes(draw) -> RecordedEpisode:
    steps = draw(st.integers(0, (1 << 32) - 1))
    return RecordedEpisode(
        draw(st.integers(0, LAST_NS)),
        draw(words(128)),
        draw(words(128)),
        draw(st.sampled_from(OUTCOMES)),
        steps,
        draw(st.integers(0, steps)),
        tuple(draw(st.lists(words(256), max_size=16))),
        draw(words(256)),
        draw(words(300)),
        draw(st.integers(0, (1 << 64) - 1)),
        draw(st.binary(min_size=32, max_size=32)).hex(),
    )


@given(episodes())
def test_what_is_sent_is_what_is_read(episode):
    assert decode_recorded(encode_recorded(episode)) == episode


@given(st.binary(max_size=300), st.integers(0, 300))
def test_bytes_of_a_stranger_are_malformed_or_an_episode(noise, at):
    raw = encode_recorded(EXAMPLE)
    for data in (raw[:at], raw[:at] + noise, raw[:at] + noise + raw[at + len(noise) :]):
        try:
            found = decode_recorded(data)
        except Malformed:
            continue
        assert isinstance(found, RecordedEpisode)


def test_an_outcome_that_is_not_known_is_malformed():
    raw = bytearray(encode_recorded(EXAMPLE))
    at = raw.index(b'ep-1\0') + 5
    assert raw[at] == 1
    raw[at] = 4
    with pytest.raises(Malformed, match=r"outcome must be one of .* got 'unknown \(4\)'"):
        decode_recorded(bytes(raw))


def test_the_names_of_outcomes_are_those_of_their_messages():
    assert tuple(map(word_of, records.RecordedEpisode.Outcome)) == OUTCOMES


@pytest.mark.parametrize(
    ('change', 'text'),
    [
        ({'outcome': 'won'}, 'outcome must be one of'),
        ({'sha256': 'A' * 64}, 'sha256 must have 64 digits'),
        ({'sha256': ''}, 'sha256 must have 64 digits'),
        ({'policies': ('p',) * 17}, 'at most 16 policies, got 17'),
        ({'policies': ('p' * 257,)}, 'a policy must have at most 256 bytes'),
        ({'stamp_ns': -1}, 'stamp_ns must be in'),
        ({'stamp_ns': LAST_NS + 1}, 'stamp_ns must be in'),
        ({'control_steps': 1 << 32}, 'control_steps must be in'),
        ({'control_steps_person': 11}, r'control_steps_person must be in \[0, 10\]'),
        ({'size_bytes': 1 << 64}, 'size_bytes must be in'),
        ({'client_id': 'é' * 65}, 'client_id must have at most 128 bytes without NUL, got 130'),
        ({'episode_id': 'a\0b'}, 'without NUL'),
        ({'path': '/\udcff'}, 'path must be UTF-8'),
    ],
)
def test_a_value_that_no_message_can_have_is_refused(change, text):
    with pytest.raises(ValueError, match=text):
        replace(EXAMPLE, **change)
