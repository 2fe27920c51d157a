"""How often robots whose session is not known are answered."""

from __future__ import annotations

from lerobot_serve.server.strangers import (
    ANSWERS_A_SECOND,
    ROBOTS_REMEMBERED,
    Strangers,
)

S = 1_000_000_000


def test_one_robot_is_answered_at_once_and_then_now_and_then():
    strangers = Strangers()
    assert strangers.may_answer('robot_1', 1, 0)
    assert not strangers.may_answer('robot_1', 1, S // 2 - 1)
    assert strangers.may_answer('robot_1', 2, S // 4)
    assert strangers.may_answer('robot_1', 1, S // 2)


def test_all_together_are_bounded_and_so_is_what_is_remembered():
    strangers = Strangers()
    answered = sum(strangers.may_answer(f'r{n}', 1, n) for n in range(10 * ANSWERS_A_SECOND))
    assert answered == ANSWERS_A_SECOND
    assert strangers.may_answer('next', 1, S)
    for number in range(2 * ROBOTS_REMEMBERED):
        strangers.may_answer(f'x{number}', 1, (2 + number) * S)
    assert len(strangers._answered_ns) == ROBOTS_REMEMBERED
