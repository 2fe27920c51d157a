# SPDX-License-Identifier: Apache-2.0
"""
Robots, hostile values, and a second opinion on what a cage may let through.

The second opinion looks at one joint and one step, in plain numbers, and shares nothing with the
cage but the words in the docstring of its limits.
"""

from __future__ import annotations

from functools import cache
from math import inf, isfinite

from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import numpy as np

from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.description import ActionLimit, CageResult, Interlock, LastCommand, Motion

STEP_S = 0.02
SLACK = 1e-8

anything = st.floats(width=64) | st.sampled_from([0.0, -0.0, inf, 1e308, -1e308, 5e-324, 1e-310])
moderate = st.floats(-4, 4)
# on a logarithmic scale, so that every limit is the tightest in some robot
size = st.floats(-3, 1).map(lambda exponent: 10.0**exponent)
rate = st.floats(-2, 3).map(lambda exponent: 10.0**exponent)
size_or_none, rate_or_none, width = size | st.just(inf), rate | st.just(inf), size | st.just(0.0)
mostly = st.sampled_from([True] * 5 + [False])


@st.composite
def action_limits(draw, index: int, motion: Motion | None = None, lead: bool = True):
    """Return the limits of one joint; each may be missing."""
    motion = motion or draw(st.sampled_from(Motion))
    low = draw(st.floats(-3, 2))
    high = low + draw(width)
    if motion is Motion.VELOCITY:
        low, high = min(low, 0.0), max(high, 0.0)
    return ActionLimit(
        f'joint_{index}',
        f'joint_{index}',
        motion,
        *((low, high) if draw(mostly) else (-inf, inf)),
        max_step=draw(size),
        max_velocity=draw(rate_or_none),
        max_acceleration=draw(rate_or_none),
        max_lead=draw(size_or_none) if lead else inf,
    )


@st.composite
def robots(draw, motion: Motion | None = None, lead: bool = True):
    count = draw(st.integers(1, 4))
    return tuple(draw(action_limits(index, motion, lead)) for index in range(count))


def random_robot(random: np.random.Generator) -> tuple[ActionLimit, ...]:
    """Return the same as `robots`, much faster and without shrinking."""

    def some(low: float, high: float) -> float:
        return float(10 ** random.uniform(low, high)) if random.random() < 0.7 else inf

    actions = []
    for index in range(random.integers(1, 6)):
        motion = random.choice(list(Motion), p=[0.7, 0.3])
        low = random.uniform(-3, 0)
        high = low + 10 ** random.uniform(-3, 1) if motion is Motion.POSITION else -low
        step = 10 ** random.uniform(-3, 1)
        more = some(-2, 3), some(-1, 4), some(-3, 1)
        actions.append(ActionLimit(f'joint_{index}', 'joint', motion, low, high, step, *more))
    return tuple(actions)


def random_action(random: np.random.Generator, last: np.ndarray) -> np.ndarray:
    """Return a small step, a place, or nonsense."""
    kind = random.choice(3, p=[0.45, 0.45, 0.1])
    if kind == 0:
        return last + random.normal(0, 10 ** random.uniform(-4, 0), len(last))
    if kind == 1:
        return random.normal(0, 4, len(last))
    return random.choice([0.0, np.nan, inf, -inf, 1e308, 5e-324, -1e9], len(last))


# Hypothesis checks a strategy that is built anew in each step of a script: 50 ms for `wild`
@cache
def vectors(count: int, elements=anything):
    return arrays.arrays(np.float64, count, elements=elements)


@cache
def wild(count: int):
    """Return what should be one action and need not be."""
    shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    return (
        vectors(count, moderate)
        | vectors(count, moderate | anything)
        | vectors(count)
        | arrays.arrays(np.float32, count, elements=st.floats(width=32))
        | arrays.arrays(np.float16, count, elements=st.floats(width=16))
        | arrays.arrays(np.int64, count)
        | arrays.arrays(np.bool_, count)
        | arrays.arrays(np.complex128, count)
        | arrays.arrays(np.dtype('U3'), count)
        | arrays.arrays(np.dtype('M8[s]'), count)
        | arrays.arrays(np.float64, shapes, elements=anything)
        | arrays.arrays(object, count, elements=anything | st.none() | st.text(max_size=3))
        | st.lists(anything | st.none() | st.text(max_size=3) | st.lists(anything), max_size=4)
        | st.none()
        | st.text()
        | st.builds(object)
    )


@cache
def wild_last(count: int):
    """Return what should be the command before and need not be."""
    sane = st.builds(LastCommand, vectors(count, moderate), vectors(count, moderate))
    return sane | sane | st.builds(LastCommand, wild(count), wild(count)) | wild(count)


def cage(
    actions: tuple[ActionLimit, ...],
    interlocks: tuple[Interlock, ...] = (),
    state_names: tuple[str, ...] = (),
    latch_after_trips: int = 0,
) -> Cage:
    return Cage(
        actions, interlocks, state_names, step_s=STEP_S, latch_after_trips=latch_after_trips
    )


def judge(guard: Cage, wanted, last, measured=None, state=None) -> CageResult:
    return guard.judge(wanted, last, measured=measured, state=state)


def at_rest(*position: float) -> LastCommand:
    return LastCommand(np.array(position), np.zeros(len(position)))


def is_numbers(value: object, count: int) -> bool:
    kinds = (np.floating, np.integer)
    return (
        isinstance(value, np.ndarray)
        and value.shape == (count,)
        and any(np.issubdtype(value.dtype, kind) for kind in kinds)
    )


def is_finite(value: object, count: int) -> bool:
    return is_numbers(value, count) and bool(np.isfinite(value).all())


def outside(low: float, high: float, value: float) -> float:
    return max(0.0, low - value, value - high)


def bounds(limit: ActionLimit) -> tuple[float, float]:
    if limit.motion is Motion.POSITION:
        return limit.low, limit.high
    return max(limit.low, -limit.max_velocity), min(limit.high, limit.max_velocity)


def start(actions: tuple[ActionLimit, ...], measured: object) -> LastCommand | None:
    """Return what a first command is bounded from: positions as measured, velocities at rest."""
    moving = np.array([limit.motion is Motion.POSITION for limit in actions])
    rest = np.array([np.clip(0.0, *bounds(limit)) for limit in actions])
    if moving.any() and not is_numbers(measured, len(actions)):
        return None
    return at_rest(*np.where(moving, measured, rest)) if moving.any() else at_rest(*rest)


def pace(limit: ActionLimit) -> float:
    """Return the largest change in one step."""
    position = limit.motion is Motion.POSITION
    return min(
        limit.max_step, STEP_S * (limit.max_velocity if position else limit.max_acceleration)
    )


def close(value: float) -> float:
    """Return what rounding may make of a number of this size."""
    return SLACK * (1 + abs(value)) if abs(value) < 1e6 else 1e-12 * abs(value)


def check_step(
    limit: ActionLimit, here: float, velocity: float, command: float, measured: float | None
) -> None:
    """Assert that one joint may be commanded so. `measured` is None where no lead is known."""
    low, high = bounds(limit)
    assert isfinite(command)
    assert abs(command - here) <= pace(limit) * (1 + SLACK) + 1e-12 * abs(here)
    assert outside(low, high, command) <= outside(low, high, here)
    if limit.motion is Motion.VELOCITY:
        return
    if measured is not None and isfinite(limit.max_lead):
        near, far = measured - limit.max_lead, measured + limit.max_lead
        assert outside(near, far, command) <= outside(near, far, here)
    check_acceleration(limit, here, velocity, command, measured)


def hard_window(limit: ActionLimit, here: float, measured: float | None) -> tuple[float, float]:
    """Return what step, velocity, position and lead allow of a position."""
    step = pace(limit)
    floors = [here - step, min(limit.low, here)]
    ceilings = [here + step, max(limit.high, here)]
    if measured is not None:
        floors.append(min(measured - limit.max_lead, here))
        ceilings.append(max(measured + limit.max_lead, here))
    return max(floors), min(ceilings)


def check_acceleration(
    limit: ActionLimit, here: float, velocity: float, command: float, measured: float | None
) -> None:
    """Assert that the velocity changes as the acceleration allows, or as little as it may."""
    low, high = hard_window(limit, here, measured)
    straight_on = here + velocity * STEP_S
    change = limit.max_acceleration * STEP_S**2
    nearest = min(max(straight_on, low), high)
    allowed = max(change, abs(nearest - straight_on))
    assert abs(command - straight_on) <= allowed * (1 + SLACK) + close(here)


def check_command(
    actions: tuple[ActionLimit, ...],
    last: LastCommand,
    command: np.ndarray,
    measured: np.ndarray | None,
) -> None:
    """Assert that every joint may be commanded so."""
    assert isinstance(command, np.ndarray)
    assert command.dtype == np.float64
    assert command.shape == (len(actions),)
    for index, limit in enumerate(actions):
        where = None if measured is None else float(measured[index])
        here, velocity = float(last.position[index]), float(last.velocity[index])
        check_step(limit, here, velocity, float(command[index]), where)
