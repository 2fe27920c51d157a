# SPDX-License-Identifier: Apache-2.0
"""A topic name that we accept is one that ROS accepts: a peer's name must not raise later on."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest
from rclpy.exceptions import InvalidTopicNameException
from rclpy.validate_full_topic_name import validate_full_topic_name

from lerobot_serve.contract.names import is_topic, ros_token, TOPIC_LIMIT

pieces = st.lists(st.text(st.sampled_from('/_aZ1é.- ~{}\n'), max_size=4), max_size=8)
letters = st.characters(exclude_categories=['Cs'], exclude_characters='\0')
almost = st.from_regex(r'/?([aZ1_]{1,4}/){0,4}[aZ1_]{0,4}', fullmatch=True)
names = pieces.map(''.join) | almost


def ros_accepts(name: str) -> bool:
    try:
        return bool(validate_full_topic_name(name))
    except (InvalidTopicNameException, ValueError):
        return False


@given(names | st.text(letters, max_size=12))
@example('/1a')
@example('/a/2')
@example('/' + 'a' * (TOPIC_LIMIT - 1))
@example('/a\0b')
@example('/a__b')
@settings(max_examples=400, deadline=None)
def test_what_ros_refuses_we_refuse(name):
    if not ros_accepts(name):
        assert not is_topic(name)


@given(st.lists(st.from_regex(r'[A-Za-z](_?[A-Za-z0-9]){0,9}', fullmatch=True), min_size=1))
@settings(max_examples=40, deadline=None)
def test_normal_names_are_accepted_by_both(words):
    name = '/' + '/'.join(words)
    if len(name) <= TOPIC_LIMIT:
        assert ros_accepts(name)
        assert is_topic(name)


@pytest.mark.parametrize('text', ['', '..', 'Lab 3/arm #2', '腕', '\ud800', 'a' * 300], ids=ascii)
def test_a_topic_below_any_robot_name_is_accepted_by_ros(text):
    assert ros_accepts(f'/{ros_token(text)}/action_chunk')


def test_the_longest_name_leaves_room_for_the_suffixes_of_services():
    longest = '/' + 'a' * (TOPIC_LIMIT - 1)
    assert is_topic(longest)
    # rclpy appends "Request" or "Reply" to the name of a service
    assert ros_accepts(longest + 'Reply')
