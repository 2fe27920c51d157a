# SPDX-License-Identifier: Apache-2.0
"""Which announcements of episodes are refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
import pytest

from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import EpisodeOutcome, RecordedEpisode
from lerobot_serve.contract.types import Time
from lerobot_serve.experience.recorded_episode import (
    check_recorded,
    decode_recorded,
    LAST_NS,
    OUTCOMES,
    word_of,
)

EXAMPLE = RecordedEpisode(
    stamp=Time.of_ns(LAST_NS),
    client_id='arm_1',
    episode_id='ep-1',
    outcome=RecordedEpisode.Outcome.SUCCESS,
    control_steps=10,
    control_steps_person=3,
    policies=('p@1', 'q@2'),
    host='desk',
    path='/bags/arm_1_ep-1',
    size_bytes=1 << 40,
    sha256='0123456789abcdef' * 4,
)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_bytes_of_a_stranger_are_malformed_or_an_episode(noise, at):
    raw = encode(EXAMPLE)
    assert decode_recorded(raw) == EXAMPLE
    for data in (raw[:at], raw[:at] + noise, raw[:at] + noise + raw[at + len(noise) :]):
        try:
            found = decode_recorded(data)
        except Malformed:
            continue
        check_recorded(found)


def test_the_names_of_outcomes_are_those_of_their_messages():
    assert ('', *map(word_of, EpisodeOutcome.Outcome)) == OUTCOMES


@pytest.mark.parametrize(
    ('change', 'text'),
    [
        (
            {'outcome': RecordedEpisode.Outcome(4)},
            r"outcome must be one of .* got 'unknown \(4\)'",
        ),
        ({'sha256': 'A' * 64}, 'sha256 must have 64 digits'),
        ({'sha256': ''}, 'sha256 must have 64 digits'),
        ({'stamp': Time(-1)}, 'stamp must be in'),
        ({'stamp': Time((1 << 31) - 1, 10**9)}, 'stamp must be in'),
        ({'control_steps_person': 11}, r'control_steps_person must be in \[0, 10\]'),
    ],
)
def test_an_announcement_that_breaks_a_rule_is_malformed(change, text):
    with pytest.raises(Malformed, match=text):
        decode_recorded(encode(replace(EXAMPLE, **change)))
