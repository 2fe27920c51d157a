# SPDX-License-Identifier: Apache-2.0
"""The bytes of an announcement are those of RecordedEpisode as ROS writes them."""

from __future__ import annotations

from builtin_interfaces.msg import Time
import pytest
from rclpy.serialization import deserialize_message, serialize_message

from lerobot_serve.experience.recorded_episode import (
    decode_recorded,
    encode_recorded,
    OUTCOMES,
    POLICIES_LIMIT,
    RecordedEpisode,
)
from lerobot_serve.ros import qos
from lerobot_serve.tools.recorder.announcing.announcer import ANNOUNCED_LIMIT
from lerobot_serve_interfaces import msg


@pytest.mark.parametrize('count', range(POLICIES_LIMIT + 1))
def test_the_bytes_are_those_of_the_message(count):
    # texts of all lengths, for every padding
    policies = [f'p@{"x" * number}' for number in range(count)]
    message = msg.RecordedEpisode(
        stamp=Time(sec=1_700_000_000, nanosec=5),
        client_id='a' * (count % 5),
        episode_id='e' * (count % 3),
        outcome=count % len(OUTCOMES),
        control_steps=10 + count,
        control_steps_person=count,
        policies=policies,
        host='h' * (count % 7),
        path='/bags/' + 'x' * count,
        size_bytes=1 << 33,
        sha256='0f' * 32,
    )
    raw = serialize_message(message)
    episode = decode_recorded(raw)
    assert episode == RecordedEpisode(
        1_700_000_000 * 10**9 + 5,
        message.client_id,
        message.episode_id,
        OUTCOMES[message.outcome],
        10 + count,
        count,
        tuple(policies),
        message.host,
        message.path,
        1 << 33,
        '0f' * 32,
    )
    assert deserialize_message(encode_recorded(episode), msg.RecordedEpisode) == message


def test_the_names_of_outcomes_are_those_of_the_message():
    assert OUTCOMES[msg.RecordedEpisode.NO_OUTCOME] == ''
    for name in OUTCOMES[1:]:
        assert OUTCOMES[getattr(msg.EpisodeOutcome, name.upper())] == name


def test_a_late_subscriber_gets_what_a_start_announces():
    assert qos.RECORDED_EPISODES.depth == ANNOUNCED_LIMIT
