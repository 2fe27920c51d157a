"""The cage: whatever is asked for, what leaves it is safe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest

from lerobot_serve.edge.cage import Cage, Judgement, Verdict
from lerobot_serve.edge.robot import ActionLimit

LIMITS = (
    ActionLimit('pan.pos', 'pan', -1.0, 1.0, 0.1),
    ActionLimit('lift.pos', 'lift', 0.5, 2.0, 0.2),
    ActionLimit('grip.pos', 'grip', -0.2, 1.8, 0.05),
)
LOW = np.array([limit.low for limit in LIMITS])
HIGH = np.array([limit.high for limit in LIMITS])
STEP = np.array([limit.max_step for limit in LIMITS])
ROUNDING = 1e-9
HERE = np.array([0.0, 1.0, 0.5])
CAGE = Cage(LIMITS)

anything = st.floats(width=64) | st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324, 1e6])
vectors = arrays.arrays(np.float64, 3, elements=anything)
shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
wild = (
    vectors
    | arrays.arrays(np.float32, 3, elements=st.floats(width=32))
    | arrays.arrays(np.float64, shapes, elements=anything)
    | st.lists(anything | st.none() | st.text(max_size=3) | st.lists(anything), max_size=4)
    | arrays.arrays(object, 3, elements=anything | st.none() | st.text(max_size=3))
    | st.none()
    | st.text()
)
somewhere = arrays.arrays(np.float64, 3, elements=st.floats(-1e6, 1e6))
inside = st.tuples(*(st.floats(limit.low, limit.high) for limit in LIMITS)).map(np.array)


def distance(command: np.ndarray) -> np.ndarray:
    """Return how far each joint is outside its limits."""
    return np.maximum(0, np.maximum(LOW - command, command - HIGH))


def is_safe(judgement: Judgement, last: np.ndarray) -> bool:
    """Tell whether the command is one step from `last`, and nowhere further outside."""
    command = judgement.command
    return (
        command.shape == last.shape
        and bool(np.isfinite(command).all())
        and bool((np.abs(command - last) <= STEP + ROUNDING * (1 + np.abs(last))).all())
        and bool((distance(command) <= distance(last)).all())
    )


@given(wild, vectors | wild)
def test_nothing_unsafe_gets_through(wanted, last):
    judgement = CAGE.judge(wanted, last)
    if judgement.verdict == Verdict.STOPPED:
        assert judgement.command is None
        assert judgement.reason
    else:
        assert is_safe(judgement, last)
        assert (judgement.reason == '') == (judgement.verdict == Verdict.PASS)


@given(inside, st.lists(wild, max_size=30))
def test_a_robot_inside_its_limits_never_leaves_them(last, script):
    for wanted in script:
        judgement = CAGE.judge(wanted, last)
        if judgement.command is not None:
            assert is_safe(judgement, last)
            assert (distance(judgement.command) == 0).all()
            last = judgement.command


@given(somewhere, somewhere)
def test_a_robot_outside_its_limits_is_led_back_a_step_at_a_time(wanted, last):
    judgement = CAGE.judge(wanted, last)
    outside = distance(last)
    left = distance(judgement.command)
    assert is_safe(judgement, last)
    assert (left[outside > 0] < outside[outside > 0]).all()
    assert (left <= np.maximum(0, outside - STEP) + ROUNDING).all()


@given(inside)
def test_what_is_allowed_passes_unchanged(here):
    judgement = CAGE.judge(here, here)
    assert judgement.verdict == Verdict.PASS
    assert judgement.command.tobytes() == here.tobytes()
    assert judgement.command is not here


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@given(joint=st.integers(0, 2), last=somewhere)
def test_what_is_not_finite_repeats_the_last_command_and_is_never_zero(value, joint, last):
    wanted = last.copy()
    wanted[joint] = value
    judgement = CAGE.judge(wanted, last)
    assert judgement.verdict == Verdict.HELD
    assert judgement.command.tobytes() == last.tobytes()
    assert judgement.command is not last
    assert judgement.reason == f'{LIMITS[joint].name} is not finite'


@pytest.mark.parametrize(
    ('wanted', 'command', 'reason'),
    [
        ([0.5, 1.0, 0.5], [0.1, 1.0, 0.5], 'pan.pos: max_step'),
        ([0.0, 0.1, 0.5], [0.0, 0.8, 0.5], 'lift.pos: limit'),
        ([0.0, 1.0, 0.45], [0.0, 1.0, 0.45], ''),
    ],
)
def test_the_reason_names_the_joint_and_the_cause(wanted, command, reason):
    judgement = CAGE.judge(np.array(wanted), HERE)
    assert judgement.command == pytest.approx(np.array(command))
    assert judgement.reason == reason
    assert judgement.verdict == (Verdict.CLAMPED if reason else Verdict.PASS)


@pytest.mark.parametrize(
    'last', [None, np.zeros(2), np.zeros((3, 1)), np.array([0.0, np.nan, 0.0]), HERE + np.inf]
)
def test_without_knowing_where_the_robot_is_nothing_moves(last):
    judgement = CAGE.judge(HERE, last)
    assert (judgement.verdict, judgement.command) == (Verdict.STOPPED, None)
    assert 'not known' in judgement.reason


class Broken(Cage):
    """Fails where the real one decides."""

    def _judge(self, wanted: np.ndarray, last: np.ndarray | None) -> Judgement:
        raise ZeroDivisionError('a mistake of ours')


def test_a_cage_that_fails_stops_the_robot():
    judgement = Broken(LIMITS).judge(HERE, HERE)
    assert (judgement.verdict, judgement.command) == (Verdict.STOPPED, None)
    assert judgement.reason == 'the cage failed: a mistake of ours'
