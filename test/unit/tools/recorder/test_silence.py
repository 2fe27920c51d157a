# SPDX-License-Identifier: Apache-2.0
"""A robot that runs and is not heard is logged once, and counted; one that ended is not."""

from __future__ import annotations

import itertools

import pytest

from lerobot_serve.tools.recorder.silence import LATE_S, Silence, SILENT_S

ROBOT, OTHER = '/arm/edge_controller/state', '/lift/edge_controller/state'


class Clock:
    """Polls each second, as the recorder does."""

    def __init__(self) -> None:
        self.silence, self.now_s = Silence(), 0.0
        self.running = {ROBOT, OTHER}

    def pass_s(self, seconds: float, heard: tuple[str, ...] = ()) -> list[str]:
        """Return what is logged meanwhile."""
        logged = []
        for _ in range(round(seconds)):
            self.now_s += 1.0
            logged += [text for name in heard if (text := self.silence.on_state(name, self.now_s))]
            logged += self.silence.poll(self.now_s, self.running.__contains__)
        return logged


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    assert clock.pass_s(2, (ROBOT, OTHER)) == []
    return clock


def test_a_robot_that_is_heard_or_was_never_heard_is_not_silent(clock):
    clock.running.add('/never/edge_controller/state')
    assert clock.pass_s(10 * SILENT_S, (ROBOT, OTHER)) == []
    assert clock.silence.unheard_s(clock.now_s) == {}


def test_a_silent_robot_is_logged_once_and_again_when_it_is_heard(clock):
    # quiet since the first poll without a state
    assert clock.pass_s(SILENT_S, (OTHER,)) == []
    (text,) = clock.pass_s(3 * SILENT_S, (OTHER,))
    assert ROBOT in text and 'is not recorded' in text
    assert clock.silence.unheard_s(clock.now_s) == {ROBOT: 4 * SILENT_S - 1}
    (text,) = clock.pass_s(3, (ROBOT, OTHER))
    assert f'heard again after {4 * SILENT_S:.0f} s' in text
    assert clock.silence.unheard_s(clock.now_s + 99) == {ROBOT: 4 * SILENT_S}


@pytest.mark.parametrize('heard, runs, silent', list(itertools.product((False, True), repeat=3)))
def test_each_combination_of_what_is_known(clock, heard: bool, runs: bool, silent: bool):
    if silent:
        assert len(clock.pass_s(SILENT_S + 1)) == 2
    clock.running = {ROBOT, OTHER} if runs else set()
    logged = clock.pass_s(SILENT_S + 1, (ROBOT, OTHER) if heard else ())
    again = [text for text in logged if 'heard again' in text]
    fell = [text for text in logged if 'is not recorded' in text]
    assert len(again) == (2 if heard and silent else 0)
    assert len(fell) == (2 if runs and not heard and not silent else 0)
    assert bool(clock.silence.unheard_s(clock.now_s)) == (silent or bool(fell))


def test_a_robot_that_ended_counts_no_longer(clock):
    assert len(clock.pass_s(SILENT_S + 1)) == 2
    clock.running.clear()
    clock.pass_s(1)
    counted = clock.silence.unheard_s(clock.now_s)
    assert clock.pass_s(100) == []
    assert clock.silence.unheard_s(clock.now_s) == counted


def test_a_robot_that_starts_again_has_time_for_its_first_state(clock):
    clock.running.clear()
    assert clock.pass_s(100) == []
    clock.running.add(ROBOT)
    assert clock.pass_s(SILENT_S) == []
    assert clock.pass_s(100, (ROBOT,)) == []
    assert clock.silence.unheard_s(clock.now_s) == {}


def test_a_recorder_that_was_stopped_itself_counts_nothing_of_that_time(clock):
    clock.pass_s(SILENT_S)
    clock.now_s += 10 * SILENT_S
    assert clock.pass_s(SILENT_S) == []
    assert clock.pass_s(LATE_S, (ROBOT, OTHER)) == []
    assert clock.silence.unheard_s(clock.now_s) == {}
