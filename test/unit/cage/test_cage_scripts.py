# SPDX-License-Identifier: Apache-2.0
"""The cage: whatever is asked for, step after step, what leaves it is safe."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.cage_rig import (
    at_rest,
    bounds,
    cage,
    check_command,
    is_finite,
    is_numbers,
    judge,
    moderate,
    outside,
    random_action,
    random_robot,
    robots,
    start,
    STEP_S,
    vectors,
    wild,
    wild_last,
)

from lerobot_serve.cage.description import CageResult, LastCommand, Motion, Verdict

VELOCITY, POSITION = Motion.VELOCITY, Motion.POSITION


def check(actions, judgement: CageResult, wanted, last, measured) -> LastCommand | None:
    """Assert that a judgement is safe and says what it did; return the command after it."""
    count = len(actions)
    if last is None:
        last = start(actions, measured)
    known = (
        isinstance(last, LastCommand)
        and is_finite(last.position, count)
        and is_finite(last.velocity, count)
    )
    assert (judgement.verdict == Verdict.PASS) == (judgement.reason == '')
    assert (judgement.reason == '') == (judgement.cause == '')
    if judgement.verdict == Verdict.STOPPED:
        if not any(limit.motion is VELOCITY for limit in actions):
            assert judgement.command is None
        if judgement.command is None:
            return last if known else None
        if not known:
            assert all(outside(*bounds(limit), 0) == 0 for limit in actions)
            assert not judgement.command.any()
            return None
    assert known
    leads = [np.isfinite(limit.max_lead) and limit.motion is POSITION for limit in actions]
    seen = any(leads) and is_numbers(measured, count) and np.isfinite(measured[leads]).all()
    seen = seen and judgement.verdict != Verdict.STOPPED
    check_command(actions, last, judgement.command, measured if seen else None)
    if is_finite(wanted, count):
        same = bool((judgement.command == wanted).all())
        assert judgement.verdict != Verdict.PASS or same
        assert judgement.verdict != Verdict.CLAMPED or not same
    else:
        assert judgement.verdict in (Verdict.HELD, Verdict.STOPPED)
    return last.after(judgement.command, STEP_S)


@settings(max_examples=30)
@given(st.data())
def test_no_script_gets_anything_unsafe_through(data):
    actions = data.draw(robots())
    count = len(actions)
    guard = cage(actions)
    last = data.draw(wild_last(count) | st.none())
    for _ in range(data.draw(st.integers(1, 12))):
        wanted, measured = (
            data.draw(wild(count)),
            data.draw(vectors(count, moderate) | wild(count)),
        )
        judgement = judge(guard, wanted, last, measured)
        last = check(actions, judgement, wanted, last, measured)


@pytest.mark.parametrize('seed', range(40))
def test_no_long_life_gets_anything_unsafe_through(seed):
    random = np.random.default_rng(seed)
    actions = random_robot(random)
    guard, last, measured = cage(actions), None, random.normal(0, 2, len(actions))
    for _ in range(300):
        wanted = random_action(random, measured if last is None else last.position)
        judgement = judge(guard, wanted, last, measured)
        last = check(actions, judgement, wanted, last, measured)
        # lags, is pushed, and is sometimes not measured
        measured = measured + random.uniform(0, 1) * (last.position - measured)
        measured += random.choice([0, 0.01, 1], p=[0.8, 0.15, 0.05]) * random.normal(
            size=len(wanted)
        )
        measured = np.where(np.isfinite(measured), measured, last.position)
        if random.random() < 0.05:
            measured[random.integers(len(actions))] = np.nan


@settings(max_examples=40)
@given(st.data())
def test_inside_its_limits_a_robot_never_leaves_them(data):
    actions = data.draw(robots())
    count = len(actions)
    guard = cage(actions)
    edges = [np.clip(bounds(limit), -9, 9) for limit in actions]
    last = at_rest(*(data.draw(st.floats(*edge)) for edge in edges))
    for _ in range(data.draw(st.integers(1, 12))):
        wanted = data.draw(wild(count) | vectors(count, moderate))
        measured = last.position + data.draw(vectors(count, moderate))
        judgement = judge(guard, wanted, last, measured)
        if judgement.command is not None:
            for limit, value in zip(actions, judgement.command, strict=True):
                assert outside(*bounds(limit), value) == 0
            last = last.after(judgement.command, STEP_S)
