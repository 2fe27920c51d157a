# SPDX-License-Identifier: Apache-2.0
"""How often robots whose session is not known are answered."""

from __future__ import annotations

from lerobot_serve.quotas.no_session_limiter import (
    MAX_CLIENTS,
    MAX_REPLIES_PER_S,
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
    for number in range(2 * MAX_CLIENTS):
        strangers.allows_reply(f'x{number}', 1, (2 + number) * S)
    assert len(strangers._answered_ns) == MAX_CLIENTS
