# SPDX-License-Identifier: Apache-2.0
"""Units of robot and policy: conversion, its way back, and where in the edge each is used."""

from __future__ import annotations

from math import isclose, pi

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.request_pipeline_rig import guided, hear
from support.edge.robot_rig import BASE, changed, SIM_ARM
from support.refusals import refused

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.cage.limits_encoding import decode_limits
from lerobot_serve.contract.data_path.execution_report import decode as decode_executed
from lerobot_serve.contract.data_path.execution_report import ExecutedRun, ExecutionReport
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.file import load, parse
from lerobot_serve.edge.robot.file_format import RobotFileError
from lerobot_serve.edge.robot.units import (
    convert_between,
    executed_for_policy,
    limits_for_policy,
    UNIT_NAMES,
    UnitConversion,
    UnitConversions,
)
from lerobot_serve.edge.session.request import OK
from lerobot_serve.edge.session_request import encode_robot_limits, limits_extension

NAME = 'shoulder_pan.pos'
DEGREES = {'robot': 'rad', 'policy': 'deg'}
CONVERTIBLE = [
    ('rad', 'deg', None),
    ('deg', 'rad', None),
    ('m', 'mm', None),
    ('rad/s', 'deg/s', None),
    ('m/s', 'mm/s', None),
    ('rad', 'range_m100_100', (-1.9, 1.7)),
    ('rad', 'range_m100_100', (1.9, -1.7)),
    ('deg', 'range_0_100', (-10.0, 100.0)),
    *((unit, unit, None) for unit in UNIT_NAMES),
]
finite = st.floats(-1000, 1000, width=32)


@pytest.mark.parametrize(('robot', 'policy', 'calibrated'), CONVERTIBLE)
@given(values=st.lists(finite, min_size=1, max_size=6))
def test_there_and_back_is_the_same_float32(robot, policy, calibrated, values):
    units = UnitConversions((convert_between(robot, policy, calibrated),) * len(values))
    sent = np.array([values, values], np.float32)
    back = units.to_policy(units.to_robot(sent))
    # what is below the rounding of the offset is nothing that a motor could do
    assert np.allclose(back, sent, rtol=1e-7, atol=1e-12)
    large = np.abs(sent) > 1e-6
    assert (back.astype(np.float32) == sent)[large].all()


@pytest.mark.parametrize(
    ('robot', 'policy', 'calibrated', 'given_policy', 'expected_robot'),
    [
        ('rad', 'deg', None, 180.0, pi),
        ('deg', 'rad', None, pi / 2, 90.0),
        ('m', 'mm', None, 250.0, 0.25),
        ('rad', 'range_m100_100', (-1.9, 1.7), -100.0, -1.9),
        ('rad', 'range_m100_100', (-1.9, 1.7), 100.0, 1.7),
        ('rad', 'range_m100_100', (-1.9, 1.7), 0.0, -0.1),
        ('rad', 'range_0_100', (1.6, -0.2), 0.0, 1.6),
        ('rad', 'range_0_100', (1.6, -0.2), 100.0, -0.2),
        ('rad', 'rad', None, 1.5, 1.5),
    ],
)
def test_a_number_of_the_policy_is_so_many_of_the_robot(
    robot, policy, calibrated, given_policy, expected_robot
):
    unit = convert_between(robot, policy, calibrated)
    assert isclose(unit.scale * given_policy + unit.offset, expected_robot, abs_tol=1e-12)


UNCONVERTIBLE = [
    ('rad', 'm', None),
    ('rad', 'deg/s', None),
    ('range_m100_100', 'deg', None),
    ('range_0_100', 'range_m100_100', (0.0, 1.0)),
    ('rad', 'range_0_100', None),
    ('rad', 'range_m100_100', (1.0, 1.0)),
    ('rad', 'deg', (0.0, 1.0)),
    ('rad', 'rad', (0.0, 1.0)),
]


@pytest.mark.golden
def test_units_that_do_not_convert_are_refused(golden):
    golden.holds('refusals/units.txt', refused(UNCONVERTIBLE, convert_between, ValueError))


def test_without_a_conversion_nothing_is_touched():
    rows = np.ones((2, 2), np.float32)
    for units in (UnitConversions(), UnitConversions((None, UnitConversion('rad', 'rad')))):
        assert units.to_robot(rows) is rows
        assert units.to_policy(rows) is rows
        assert not units.converts


@given(
    st.sampled_from([each for each in CONVERTIBLE if each[0] == 'rad']),
    st.floats(-3, 0),
    st.floats(0.1, 3),
)
def test_limits_hold_for_the_same_commands_in_both_units(conversion, low, high):
    unit = convert_between(*conversion)
    robots = ActionLimit('a', 'a', Motion.POSITION, low, high, 0.1, 2.0, 20.0, 0.5)
    (policys,) = limits_for_policy([robots], UnitConversions((unit,)))
    assert policys.low < policys.high
    ends = sorted(unit.scale * end + unit.offset for end in (policys.low, policys.high))
    assert np.allclose(ends, (low, high))
    for key in ('max_step', 'max_velocity', 'max_acceleration', 'max_lead'):
        assert isclose(getattr(policys, key) * abs(unit.scale), getattr(robots, key))


def test_executed_rows_are_told_in_the_unit_of_the_policy():
    executed = ExecutionReport(
        actions=3, runs=(ExecutedRun(1, 1, 0, np.array([[pi, 1.0]], np.float32)),)
    )
    told = executed_for_policy(executed, UnitConversions((convert_between('rad', 'deg'), None)))
    assert np.allclose(told.runs[0].rows, [[180.0, 1.0]])
    assert told.runs[0].rows.dtype == np.float32
    assert told.actions == 3
    assert executed_for_policy(executed, UnitConversions((None, None))) is executed


# the file


def test_a_file_declares_the_units_of_states_and_actions():
    robot = parse(changed(f'units/{NAME}', DEGREES), 'f')
    assert np.allclose(robot.state_units.to_policy(np.full(6, pi)), [180.0, *[pi] * 5])
    assert np.allclose(robot.action_units.to_robot(np.full(6, 180.0)), [pi, *[180.0] * 5])
    # limits stay in the unit of the robot
    assert robot.actions == load(SIM_ARM).actions


def test_limits_are_shared_in_the_unit_of_the_policy():
    robot = parse(changed(f'units/{NAME}', DEGREES), 'f')
    (extension,) = limits_extension(EdgeParameters(), robot)
    shared = decode_limits(extension.value)
    low, high = np.array([-400.0, *[0.0] * 5]), np.array([400.0, *[0.0] * 5])
    kept = [shared.nearest(w, shared.start(w), None, allow_return=True)[0] for w in (low, high)]
    assert kept[0] > -400
    plain = decode_limits(encode_robot_limits(EdgeParameters(), load(SIM_ARM)))
    inside = np.array([108.0, *[0.0] * 5])
    assert (shared.nearest(inside, shared.start(inside), None, allow_return=True) == inside).all()
    assert (plain.nearest(inside, plain.start(inside), None, allow_return=True) != inside).any()


def test_traces_and_audits_have_the_limits_in_the_unit_of_the_commands():
    plain = encode_robot_limits(EdgeParameters(), load(SIM_ARM))
    assert (
        encode_robot_limits(EdgeParameters(), parse(changed(f'units/{NAME}', DEGREES), 'f'))
        == plain
    )


MISTAKES = [
    ({'shoulder_pan': DEGREES},),
    ({NAME: 'deg'},),
    ({NAME: {'robot': 'rad'}},),
    ({NAME: {'robot': 'rad', 'policy': 'grad'}},),
    ({NAME: {'robot': 'rad', 'policy': 'mm'}},),
    ({NAME: {'robot': 'rad/s', 'policy': 'rad/s'}},),
    ({NAME: {**DEGREES, 'calibrated': 3}},),
    ({NAME: {'robot': 'rad', 'policy': 'range_0_100', 'calibrated': [0, True]}},),
    ({NAME: {**DEGREES, 'unit': 'rad'}},),
]


@pytest.mark.golden
def test_a_mistake_in_the_units_is_named_with_its_place(golden):
    said = refused(MISTAKES, lambda units: parse(changed('units', units), 'f'), RobotFileError)
    golden.holds('refusals/robot_units.txt', said)


def test_a_command_and_what_measures_it_must_be_in_one_unit():
    content = changed('state/0/names', [f'm{i}' for i in range(6)])
    content['units'] = {NAME: DEGREES}
    with pytest.raises(RobotFileError, match=r'has rad and the state m0 that measures it has no'):
        parse(content, 'f')
    content['units']['m0'] = {'robot': 'rad', 'policy': 'rad'}
    assert parse(content, 'f').state_units.converts is False


def test_velocities_have_units_of_velocities():
    given_units = {'angular.z': {'robot': 'rad/s', 'policy': 'deg/s'}}
    robot = parse(changed('units', given_units, BASE), 'f')
    assert np.allclose(robot.action_units.to_robot(np.array([0.5, 180.0])), [0.5, pi])
    with pytest.raises(RobotFileError, match='is a velocity, and rad is not its unit'):
        parse(changed('units', {'angular.z': {'robot': 'rad', 'policy': 'deg'}}, BASE), 'f')


# the boundary


def test_chunks_come_in_and_prefixes_go_out_in_the_unit_of_the_policy():
    bench = guided()
    units = UnitConversions(
        (
            convert_between('rad', 'deg'),
            None,
            convert_between('rad', 'range_m100_100', (-1.9, 1.7)),
        )
    )
    bench.merger.units = units
    rows = np.array([[90.0, 7.0, 33.3]] * 6, np.float32) + np.arange(6, dtype=np.float32)[:, None]
    assert hear(bench, bench.send_request(), rows, model=rows / 10) == OK
    planned = bench.actions.take()
    assert np.allclose(planned.action, units.to_robot(rows[0]))
    assert isclose(planned.action[0], pi / 2)
    bench.executed = ExecutionReport(
        runs=(ExecutedRun(1, 1, 0, np.array([planned.action], np.float32)),)
    )
    sent = bench.send_request()
    # byte for byte what the server gave
    assert sent.prefix_robot.tobytes() == rows[1:].tobytes()
    assert np.array_equal(sent.prefix_model, (rows / 10)[1:])
    told = decode_executed(sent.extensions[0])
    assert np.allclose(told.runs[0].rows, rows[:1])
