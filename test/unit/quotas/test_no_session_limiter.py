# SPDX-License-Identifier: Apache-2.0
"""How often robots whose session is not known are answered."""

from __future__ import annotations

from lerobot_serve.quotas import (
    MAX_CLIENT_REPLIES_PER_S,
    MAX_REPLIES_PER_S,
    MAX_SESSIONS,
    NoSessionLimiter,
)

S = 1_000_000_000


def test_one_robot_is_answered_at_once_and_then_now_and_then():
    strangers = NoSessionLimiter()
    assert strangers.allows_reply('robot_1', 1, 0)
    assert not strangers.allows_reply('robot_1', 1, S // 2 - 1)
    assert strangers.allows_reply('robot_1', 2, S // 4)
    assert strangers.allows_reply('robot_1', 1, S // 2)


def test_all_together_are_bounded_and_so_is_what_is_remembered():
    strangers = NoSessionLimiter()
    answered = sum(strangers.allows_reply(f'r{n}', 1, n) for n in range(10 * MAX_REPLIES_PER_S))
    assert answered == MAX_REPLIES_PER_S
    assert strangers.allows_reply('next', 1, S)
    for number in range(2 * MAX_SESSIONS):
        strangers.allows_reply(f'x{number}', 1, (2 + number) * S)
    assert len(strangers._answered_ns) == MAX_SESSIONS


def test_who_was_answered_last_is_remembered_longest():
    strangers = NoSessionLimiter()
    strangers.allows_reply('robot', 1, 0)
    for number in range(MAX_SESSIONS - 1):
        strangers.allows_reply(f'r{number}', 1, (1 + number) * S)
    now = MAX_SESSIONS * S
    assert strangers.allows_reply('robot', 1, now)
    # now one is forgotten, and it is not this robot
    strangers.allows_reply('another', 1, now)
    assert not strangers.allows_reply('robot', 1, now + 1)


def test_a_robot_with_a_new_session_in_each_request_leaves_replies_to_others():
    strangers, epoch = NoSessionLimiter(), 0
    for second in range(3):
        answered = 0
        for number in range(1000):
            epoch += 1
            answered += strangers.allows_reply('flood', epoch, second * S + number)
        assert answered == MAX_CLIENT_REPLIES_PER_S
        others = sum(strangers.allows_reply(f'r{n}', 1, second * S + S // 2) for n in range(100))
        assert others == MAX_REPLIES_PER_S - MAX_CLIENT_REPLIES_PER_S
        assert len(strangers._answers) <= MAX_REPLIES_PER_S
    assert len(strangers._answered_ns) <= MAX_SESSIONS
