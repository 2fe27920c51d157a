# SPDX-License-Identifier: Apache-2.0
"""Commands: each value arrives at the joint that it is for, in each kind of message."""

from __future__ import annotations

from dataclasses import replace

from builtin_interfaces.msg import Duration, Time
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.robot_rig import ROBOTS

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.edge.robot.command_messages import command_message, COMMAND_MESSAGES
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES, TWIST_FIELDS
from lerobot_serve.edge.robot.description import CommandOutput, RobotDescription
from lerobot_serve.edge.robot.file import load

STAMP = Time(sec=7, nanosec=8)


def robot(kind: str, motion: Motion, *joints: str, **output: object) -> RobotDescription:
    actions = tuple(ActionLimit(f'my {j}', j, motion, -9.0, 9.0, 1.0) for j in joints)
    return RobotDescription('r', 50.0, (), (), actions, CommandOutput(kind, 'commands', **output))


def test_every_kind_that_a_file_may_name_can_be_made():
    assert set(COMMAND_MESSAGES) == set(COMMAND_TYPES)
    for kind, (message, *_) in COMMAND_MESSAGES.items():
        motion = Motion.VELOCITY if 'Twist' in kind else Motion.POSITION
        told = command_message(np.zeros(1), robot(kind, motion, 'linear.x'), STAMP)
        assert type(told) is message
        package, name = kind.split('/')
        assert (message.__module__.split('.')[0], message.__name__) == (package, name)


@pytest.mark.parametrize(
    ('fps', 'given_s', 'seconds', 'nanoseconds'),
    [
        (30.0, 0.0, 0, 33_333_333),
        (0.1, 0.0, 10, 0),
        (0.8, 0.0, 1, 250_000_000),
        (30.0, 0.5, 0, 500_000_000),
        (30.0, 2.25, 2, 250_000_000),
    ],
)
def test_a_trajectory_is_due_at_the_next_step_or_when_the_file_says(
    fps, given_s, seconds, nanoseconds
):
    arm = load(ROBOTS / 'sim_arm.yaml')
    command = replace(arm.command, time_from_start_s=given_s)
    told = command_message(np.arange(6) / 8, replace(arm, fps=fps, command=command), STAMP)
    assert told.joint_names == [action.joint for action in arm.actions]
    (point,) = told.points
    assert list(point.positions) == [0.0, 0.125, 0.25, 0.375, 0.5, 0.625]
    assert not point.velocities
    due = point.time_from_start
    assert (due.sec, due.nanosec) == (seconds, nanoseconds)
    # a robot that is commanded more often gets there sooner
    told = command_message(
        np.arange(6) / 8, replace(arm, fps=fps, command=command), STAMP, 1 / (2 * fps)
    )
    due_s = given_s or 1 / (2 * fps)
    assert told.points[0].time_from_start == Duration(
        sec=int(due_s), nanosec=int(1e9 * due_s) - 10**9 * int(due_s)
    )
    # with a stamp, a controller on another clock would take it for late
    assert told.header.stamp == Time()


def test_an_array_has_the_order_of_the_actions():
    kind = 'std_msgs/Float64MultiArray'
    told = command_message(np.array([3.0, 1.0, 2.0]), robot(kind, Motion.POSITION, *'cab'), STAMP)
    assert list(told.data) == [3.0, 1.0, 2.0]


@pytest.mark.parametrize('motion', Motion)
def test_a_joint_state_has_positions_or_velocities(motion):
    arm = robot('sensor_msgs/JointState', motion, *'cab')
    told = command_message(np.array([3.0, 1.0, 2.0]), arm, STAMP)
    assert told.name == ['c', 'a', 'b']
    values = {'position': list(told.position), 'velocity': list(told.velocity)}
    assert values == {'position': [], 'velocity': []} | {motion.value: [3.0, 1.0, 2.0]}
    assert told.header.stamp == STAMP


@given(st.permutations(TWIST_FIELDS), st.integers(1, 6))
def test_a_twist_has_each_value_in_its_field_and_zeros_elsewhere(fields, count):
    named = fields[:count]
    values = np.arange(1.0, count + 1)
    base = robot('geometry_msgs/Twist', Motion.VELOCITY, *named)
    told = command_message(values, base, STAMP)
    expected = dict.fromkeys(TWIST_FIELDS, 0.0) | dict(zip(named, values, strict=True))
    found = {
        f'{part}.{axis}': getattr(getattr(told, part), axis)
        for part in ('linear', 'angular')
        for axis in 'xyz'
    }
    assert found == expected


def test_a_stamped_twist_is_the_same_with_a_stamp_and_a_frame():
    fields = ('linear.x', 'angular.z')
    values = np.array([0.5, -1.0])
    plain = robot('geometry_msgs/Twist', Motion.VELOCITY, *fields)
    stamped = robot('geometry_msgs/TwistStamped', Motion.VELOCITY, *fields, frame_id='base')
    told = command_message(values, stamped, STAMP)
    assert told.twist == command_message(values, plain, STAMP)
    assert (told.header.stamp, told.header.frame_id) == (STAMP, 'base')
