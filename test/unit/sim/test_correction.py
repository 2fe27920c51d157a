# SPDX-License-Identifier: Apache-2.0
"""The simulated person: when it takes over, and when it hands back."""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.sim.correction import (
    CorrectingPerson,
    PATIENCE_S,
    REPEAT_S,
    Request,
    REQUESTS,
    STOPPED_M,
    STOPPED_S,
)

STEP_S = 0.02


class Attempt:
    """A person, a hand, and an edge controller that does what it is asked."""

    def __init__(self) -> None:
        self.person = CorrectingPerson()
        self.now_s, self.hand = 100.0, (0.2, 0.0)
        self.commands = self.reached = False
        self.corrects = True
        self.obeys = True
        self.requests: list[Request] = []
        self.begin()

    def begin(self) -> None:
        self.person.begin_attempt(self.now_s, self.hand)

    def run(self, seconds: float, speed_m_s: float = 0.0) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            self.hand = self.hand[0] + speed_m_s * STEP_S, self.hand[1]
            found = self.person.request(
                self.now_s,
                self.hand,
                is_reached=self.reached,
                person_commands=self.commands,
                corrects=self.corrects,
            )
            if found:
                self.requests.append(found)
                if self.obeys:
                    self.commands = found is Request.TAKE_OVER


@pytest.fixture
def attempt() -> Attempt:
    return Attempt()


def test_every_combination_has_a_request():
    assert set(REQUESTS) == set(product((False, True), repeat=3))
    for (owns, may, beside), found in REQUESTS.items():
        assert (found is Request.TAKE_OVER) == (may and beside and not owns)
        assert (found is Request.HAND_BACK) == (owns and not may)


def test_the_policy_tries_first_and_is_corrected_where_its_hand_stops(attempt):
    attempt.run(1.0, speed_m_s=0.1)
    attempt.run(STOPPED_S - 3 * STEP_S)
    assert not attempt.requests
    attempt.run(4 * STEP_S)
    assert attempt.requests == [Request.TAKE_OVER]
    # it commands until the end of the attempt, also where it rests
    attempt.run(5.0)
    assert attempt.requests == [Request.TAKE_OVER]
    attempt.begin()
    attempt.run(STEP_S)
    assert attempt.requests == [Request.TAKE_OVER, Request.HAND_BACK]


def test_a_hand_that_reached_the_target_is_left_alone(attempt):
    attempt.run(1.0, speed_m_s=0.1)
    attempt.reached = True
    attempt.run(3.0)
    assert not attempt.requests


def test_a_trembling_hand_has_stopped(attempt):
    attempt.run(1.0, speed_m_s=0.1)
    x, y = attempt.hand
    for number in range(100):
        attempt.hand = x + (-1) ** number * 0.4 * STOPPED_M, y
        attempt.run(STEP_S)
    assert attempt.requests == [Request.TAKE_OVER]


def test_a_policy_that_has_not_begun_is_given_time(attempt):
    attempt.run(PATIENCE_S - 2 * STEP_S)
    assert not attempt.requests
    attempt.run(4 * STEP_S)
    assert attempt.requests == [Request.TAKE_OVER]


def test_a_request_without_an_effect_is_repeated(attempt):
    attempt.obeys = False
    attempt.run(PATIENCE_S + 2.5 * REPEAT_S)
    assert attempt.requests == [Request.TAKE_OVER] * 3


def test_who_may_not_correct_does_not_and_gives_back_at_once(attempt):
    attempt.run(PATIENCE_S + 2 * STEP_S)
    assert attempt.commands
    attempt.corrects = False
    attempt.run(REPEAT_S + STEP_S)
    assert attempt.requests == [Request.TAKE_OVER, Request.HAND_BACK]
    attempt.run(5.0)
    assert len(attempt.requests) == 2


def test_the_takeover_of_an_operator_is_not_handed_back(attempt):
    attempt.run(PATIENCE_S + 2 * STEP_S)
    attempt.begin()
    attempt.run(REPEAT_S + 2 * STEP_S)
    assert attempt.requests == [Request.TAKE_OVER, Request.HAND_BACK]
    attempt.commands = True
    attempt.begin()
    attempt.run(5.0)
    assert attempt.requests == [Request.TAKE_OVER, Request.HAND_BACK]


def test_a_takeover_that_comes_after_the_attempt_is_handed_back(attempt):
    attempt.obeys = False
    attempt.run(PATIENCE_S + 2 * STEP_S)
    attempt.begin()
    attempt.commands = attempt.obeys = True
    attempt.run(STEP_S)
    assert attempt.requests == [Request.TAKE_OVER, Request.HAND_BACK]
