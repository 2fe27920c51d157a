# SPDX-License-Identifier: Apache-2.0
"""The alarm for a policy whose actions are mostly clamped: when it sounds, when it latches."""

from __future__ import annotations

import numpy as np
import pytest
from support.edge.controller_rig import arm, Bench, STEP_S

from lerobot_serve.cage.description import ActionLimit, Motion, Verdict
from lerobot_serve.edge.control.clamp_alarm import ClampAlarm

STEPS = 10


def alarm_of(*motions: Motion, steps: int = STEPS) -> ClampAlarm:
    limits = tuple(
        ActionLimit(f'j{i}', f'j{i}', motion, -1.0, 1.0, 0.1) for i, motion in enumerate(motions)
    )
    return ClampAlarm(limits, window_steps=steps, window_s=1.0)


def arm_alarm(joints: int = 4, steps: int = STEPS) -> ClampAlarm:
    return alarm_of(*[Motion.POSITION] * joints, steps=steps)


def feed(alarm: ClampAlarm, wanted: list[float], command: list[float], steps: int) -> list:
    """Return what each step answered."""
    return [alarm.record(np.array(wanted), np.array(command)) for _ in range(steps)]


def test_half_of_the_joints_outside_for_the_whole_window_latch_once():
    alarm = arm_alarm()
    said = feed(alarm, [45.0, -60.0, 0.5, 0.5], [1.0, -1.0, 0.5, 0.5], 3 * STEPS)
    assert said[: STEPS - 1] == [None] * (STEPS - 1)
    assert said[STEPS - 1].latches
    assert said[STEPS:] == [None] * (2 * STEPS)
    assert '20 of 40 joint-steps of the last 1 s' in said[STEPS - 1].text
    assert alarm.take_unreported() is said[STEPS - 1]
    assert alarm.take_unreported() is None


def test_fewer_than_half_are_no_alarm():
    alarm = arm_alarm()
    assert feed(alarm, [45.0, 0.5, 0.5, 0.5], [1.0, 0.5, 0.5, 0.5], 5 * STEPS) == [None] * 50
    assert alarm.current is None


def test_joints_that_are_only_slowed_sound_and_do_not_latch():
    alarm = arm_alarm()
    said = feed(alarm, [0.9, 0.9, 0.9, 0.0], [0.1, 0.1, 0.1, 0.0], STEPS)
    assert not said[-1].latches
    assert 'clamped' in said[-1].text
    # from slowed to outside is another alarm
    assert any(each and each.latches for each in feed(alarm, [9.0] * 4, [1.0] * 4, STEPS))


def test_it_falls_silent_when_actions_pass_again():
    alarm = arm_alarm()
    feed(alarm, [9.0] * 4, [1.0] * 4, STEPS)
    assert alarm.current
    feed(alarm, [0.5] * 4, [0.5] * 4, STEPS)
    assert alarm.current is None


def test_a_plan_up_to_a_limit_is_not_outside():
    alarm = arm_alarm()
    said = feed(alarm, [1.0000001] * 4, [1.0] * 4, STEPS)
    assert said[-1]
    assert not said[-1].latches


def test_velocities_never_latch():
    alarm = alarm_of(Motion.VELOCITY, Motion.VELOCITY)
    said = feed(alarm, [9.0, 9.0], [1.0, 1.0], STEPS)
    assert not said[-1].latches


def test_reset_forgets_what_was_seen():
    alarm = arm_alarm()
    feed(alarm, [9.0] * 4, [1.0] * 4, STEPS)
    alarm.reset()
    assert alarm.current is None
    assert feed(alarm, [9.0] * 4, [1.0] * 4, STEPS - 1) == [None] * (STEPS - 1)


def test_a_window_of_nothing_never_sounds():
    assert feed(arm_alarm(steps=0), [9.0] * 4, [1.0] * 4, 100) == [None] * 100


@pytest.fixture
def bench() -> Bench:
    bench = Bench(arm(joints=2))
    bench.controller.alarm = ClampAlarm(
        bench.robot.actions, window_steps=STEPS, window_s=STEPS * STEP_S
    )
    return bench


def play(bench: Bench, row: list[float], steps: int) -> list[Verdict]:
    """Return the verdicts of so many steps of a policy that wants this row."""
    verdicts = []
    for _ in range(steps):
        bench.queue.clear(ends_episode=False)
        bench.plan(row, row)
        executed = bench.step()
        verdicts += [executed.judgement.verdict] if executed else []
    return verdicts


def test_a_policy_in_another_unit_latches_the_cage(bench):
    verdicts = play(bench, [5000.0, 5000.0], 3 * STEPS)
    assert bench.controller.latched
    assert 'outside the position limits' in bench.controller.latch_reason
    assert verdicts[-1] == Verdict.STOPPED
    bench.controller.reset_cage()
    assert play(bench, [0.0, 0.0], 2)[-1] != Verdict.STOPPED
    assert not bench.controller.latched


def test_what_was_outside_in_one_episode_does_not_count_in_the_next(bench):
    play(bench, [5000.0, 5000.0], STEPS - 1)
    bench.queue.clear()
    assert play(bench, [5000.0, 5000.0], STEPS - 1)[-1] != Verdict.STOPPED
    play(bench, [5000.0, 5000.0], 1)
    assert bench.controller.latched


def test_a_policy_within_the_limits_does_not(bench):
    play(bench, [50.0, 50.0], 5 * STEPS)
    assert not bench.controller.latched
