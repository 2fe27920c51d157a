# SPDX-License-Identifier: Apache-2.0
"""What a person sends: each value arrives at its action, and nonsense at none."""

from __future__ import annotations

from dataclasses import replace

from builtin_interfaces.msg import Time
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.robot.command_messages import command_message
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES
from lerobot_serve.edge.robot.description import CommandOutput, RobotDescription
from lerobot_serve.edge.robot.intervention import InterventionInput, JOY, JoyAxis
from lerobot_serve.edge.ros import person_messages

JOINTS = 'linear.x', 'angular.z', 'linear.y'
FINITE = st.floats(-1e30, 1e30)


def robot(kind: str, axes: tuple[JoyAxis, ...] = ()) -> RobotDescription:
    motion = Motion.VELOCITY if 'Twist' in kind else Motion.POSITION
    actions = tuple(ActionLimit(f'my {j}', j, motion, -9.0, 9.0, 1.0) for j in JOINTS)
    output = CommandOutput('std_msgs/Float64MultiArray' if kind == JOY else kind, 'commands')
    device = InterventionInput('leader', kind, 0.2, None, axes)
    return RobotDescription('r', 50.0, (), (), actions, output, intervention=device)


def target(message: object, kind: str, axes: tuple[JoyAxis, ...] = ()) -> list[float]:
    found = person_messages.person_target(serialize_message(message), robot(kind, axes))
    assert found.is_rate is (kind == JOY)
    return found.values.tolist()


@pytest.mark.parametrize('kind', COMMAND_TYPES)
@given(values=st.tuples(FINITE, FINITE, FINITE))
def test_a_device_may_send_what_a_robot_takes(kind, values):
    arm = robot(kind)
    sent = command_message(np.array(values), replace(arm), Time())
    assert target(sent, kind) == list(values)


def test_joints_are_found_by_name_and_others_do_not_matter():
    sent = JointState(name=['tail', *reversed(JOINTS)], position=[9.0, 3.0, 2.0, 1.0])
    assert target(sent, 'sensor_msgs/JointState') == [1.0, 2.0, 3.0]


def test_a_joystick_moves_what_has_an_axis():
    axes = (JoyAxis('my angular.z', 1, -2.0),)
    assert target(Joy(axes=[9.0, 0.5]), JOY, axes) == [0.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ('kind', 'message', 'reason'),
    [
        ('sensor_msgs/JointState', JointState(), 'missing_joint'),
        ('sensor_msgs/JointState', JointState(name=list(JOINTS)), 'wrong_shape'),
        (
            'sensor_msgs/JointState',
            JointState(name=[*JOINTS, JOINTS[0]], position=[1.0] * 4),
            'doubled_joint',
        ),
        (
            'sensor_msgs/JointState',
            JointState(name=list(JOINTS), position=[1.0, float('nan'), 1.0]),
            'not_finite',
        ),
        ('std_msgs/Float64MultiArray', Float64MultiArray(data=[1.0]), 'wrong_shape'),
        ('std_msgs/Float64MultiArray', Float64MultiArray(data=[1.0, 1e300, 0.0]), 'not_finite'),
        ('trajectory_msgs/JointTrajectory', JointTrajectory(), 'wrong_shape'),
        (
            'trajectory_msgs/JointTrajectory',
            JointTrajectory(joint_names=list(JOINTS), points=[JointTrajectoryPoint()]),
            'wrong_shape',
        ),
        (JOY, Joy(), 'wrong_shape'),
        (JOY, Joy(axes=[float('inf'), 0.0]), 'not_finite'),
    ],
)
def test_nonsense_is_refused_with_a_reason(kind, message, reason):
    with pytest.raises(Malformed) as refused:
        target(message, kind, (JoyAxis('my linear.x', 0, 1.0),))
    assert refused.value.reason == reason


@pytest.mark.parametrize('kind', [*COMMAND_TYPES, JOY])
@given(raw=st.binary(max_size=200))
def test_bytes_of_anything_are_a_target_or_malformed(kind, raw):
    try:
        found = person_messages.person_target(raw, robot(kind, (JoyAxis('my linear.x', 0, 1.0),)))
    except Malformed:
        return
    assert np.isfinite(found.values).all()
    assert found.values.shape == (3,)


def test_a_button_is_pressed_or_not_or_is_none():
    raw = serialize_message(Joy(buttons=[0, 1]))
    assert not person_messages.is_button_pressed(raw, 'joy', 0)
    assert person_messages.is_button_pressed(raw, 'joy', 1)
    with pytest.raises(Malformed, match='no button 2; there are 2'):
        person_messages.is_button_pressed(raw, 'joy', 2)
