# SPDX-License-Identifier: Apache-2.0
"""Whether the range of a policy's actions fits a robot's limits, or is that of another unit."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.robot_rig import BASE, changed, SIM_ARM

from lerobot_serve.contract.records import Extension
from lerobot_serve.contract.services import action_range
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.edge.robot.file import load, parse
from lerobot_serve.edge.robot.unit_check import check_units, UnitFit

ARM = load(SIM_ARM)
LOW = np.array([action.low for action in ARM.actions])
HIGH = np.array([action.high for action in ARM.actions])
DEGREES = {action.name: {'robot': 'rad', 'policy': 'deg'} for action in ARM.actions}


def between(low: np.ndarray, high: np.ndarray) -> ActionRange:
    return ActionRange(tuple(low.tolist()), tuple(high.tolist()))


def test_a_range_within_the_limits_fits():
    assert check_units(ARM, between(LOW, HIGH)) == check_units(ARM, None)
    assert check_units(ARM, between(LOW / 2, HIGH / 2)).fit is UnitFit.FITS


def test_degrees_on_a_robot_in_radians_are_refused_and_named():
    found = check_units(ARM, between(np.rad2deg(LOW), np.rad2deg(HIGH)))
    assert found.fit is UnitFit.GROSS
    assert 'shoulder_pan.pos -108.9 to 108.9, limits -1.9 to 1.9' in found.text
    assert 'this looks like deg' in found.text
    assert '`units: {shoulder_pan.pos: {robot: rad, policy: deg}}`' in found.text


def test_the_normalised_range_of_lerobot_is_refused_and_named():
    low, high = np.full(6, -100.0), np.full(6, 100.0)
    low[5] = 0.0
    found = check_units(ARM, between(low, high))
    assert found.fit is UnitFit.GROSS
    assert 'this looks like deg or range_m100_100 or range_0_100' in found.text


def test_a_gripper_alone_in_another_unit_is_refused():
    low, high = LOW.copy(), HIGH.copy()
    low[5], high[5] = 0.0, 100.0
    found = check_units(ARM, between(low, high))
    assert found.fit is UnitFit.GROSS
    assert 'this looks like range_0_100' in found.text
    assert 'gripper.pos: {robot: rad, policy: range_0_100}' in found.text
    assert 'shoulder_pan' not in found.text


def test_declared_units_are_converted_before_they_are_compared():
    robot = parse(changed('units', DEGREES), 'f')
    assert check_units(robot, between(np.rad2deg(LOW), np.rad2deg(HIGH))).fit is UnitFit.FITS
    # and now it is the policy in radians that moves nothing
    found = check_units(robot, between(LOW, HIGH))
    assert found.fit is UnitFit.DOUBTFUL
    assert 'a small part of the limits' in found.text


def test_a_reversed_calibration_is_a_range_too():
    units = {'gripper.pos': {'robot': 'rad', 'policy': 'range_0_100', 'calibrated': [1.8, -0.2]}}
    robot = parse(changed('units', units), 'f')
    low, high = LOW.copy(), HIGH.copy()
    low[5], high[5] = 0.0, 100.0
    assert check_units(robot, between(low, high)).fit is UnitFit.FITS


def test_limits_that_are_narrow_on_purpose_are_a_warning_where_units_are_declared():
    same = {action.name: {'robot': 'rad', 'policy': 'rad'} for action in ARM.actions}
    robot = parse(changed('units', same), 'f')
    found = check_units(robot, between(20 * LOW, 20 * HIGH))
    assert found.fit is UnitFit.DOUBTFUL
    assert 'the units of these actions are declared' in found.text


def test_a_little_beyond_the_limits_is_a_warning():
    found = check_units(ARM, between(2 * LOW, 2 * HIGH))
    assert found.fit is UnitFit.DOUBTFUL
    assert 'clamped there' in found.text


def test_velocities_are_not_compared():
    base = parse(BASE, 'f')
    assert check_units(base, ActionRange((-50.0, -50.0), (50.0, 50.0))).fit is UnitFit.FITS


def test_a_range_of_other_actions_is_told():
    found = check_units(ARM, ActionRange((0.0,), (1.0,)))
    assert found.fit is UnitFit.DOUBTFUL
    assert 'ranges for 1 actions, the robot has 6' in found.text


@given(st.floats(10.5, 1000), st.integers(0, 5))
def test_one_joint_that_is_far_beyond_is_always_refused(factor, joint):
    low, high = LOW.copy(), HIGH.copy()
    middle, half = (low + high)[joint] / 2, (high - low)[joint] / 2
    high[joint] = middle + factor * half
    assert check_units(ARM, between(low, high)).fit is UnitFit.GROSS


# the extension


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(finite, finite).map(sorted), min_size=1, max_size=20))
def test_the_bytes_of_a_range_are_read_as_they_were_written(pairs):
    other = Extension('other', b'x')
    written = ActionRange(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))
    assert action_range.find([other, Extension(action_range.KEY, action_range.encode(written))])
    assert action_range.decode(action_range.encode(written)) == written
    assert action_range.find([other]) is None


@pytest.mark.parametrize(
    'data',
    [
        b'',
        b'\xff',
        b'[',
        b'[' * 100_000,
        b'3',
        b'{}',
        b'{"low": [1], "high": [0]}',
        b'{"low": [0], "high": [0, 1]}',
        b'{"low": [], "high": []}',
        b'{"low": [NaN], "high": [1]}',
        b'{"low": [0], "high": [Infinity]}',
        b'{"low": [true], "high": [1]}',
        b'{"low": ["0"], "high": [1]}',
        b'{"low": [0], "high": [' + b'9' * 400 + b']}',
        json.dumps({'low': [0] * 1025, 'high': [1] * 1025}).encode(),
    ],
)
def test_bytes_that_are_no_range_are_refused(data):
    with pytest.raises(ValueError, match='action range'):
        action_range.decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_range_or_a_value_error(data):
    try:
        action_range.decode(data)
    except ValueError as error:
        assert 'action range' in str(error)
