# SPDX-License-Identifier: Apache-2.0
"""A robot's messages become its state: by name, finite and complete, or not at all."""

from __future__ import annotations

from dataclasses import replace
import math

from builtin_interfaces.msg import Time
from geometry_msgs.msg import Quaternion
from hypothesis import given, settings
from hypothesis import strategies as st
from nav_msgs.msg import Odometry
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
from lerobot_serve.edge.robot.description import CommandOutput, RobotDescription, StateSource
from lerobot_serve.edge.robot.file_format import (
    CAMERA_TYPES,
    InterventionInput,
    JOY,
    JoyAxis,
    ODOMETRY_FIELDS,
    STATE_TYPES,
)
from lerobot_serve.edge.ros import person_messages, sensor_messages

NAMES = ('pan', 'lift', 'flex', 'gripper')
VALUES = (0.5, -1.25, 2.0, 0.0)
patient = settings(max_examples=50, deadline=None)


def source(kind: str, *fields: str, field: str = '') -> StateSource:
    return StateSource('topic', kind, fields, field, fields, 1.0)


def joints(*fields: str, field: str = 'position') -> StateSource:
    return source('sensor_msgs/JointState', *fields, field=field)


def refusal(message: object, of: StateSource) -> Malformed:
    with pytest.raises(Malformed) as caught:
        sensor_messages.source_values(serialize_message(message), of)
    assert str(caught.value).startswith('topic: ')
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def test_every_type_that_a_file_may_name_is_known():
    assert set(sensor_messages.MESSAGE_TYPES) == {*STATE_TYPES, *CAMERA_TYPES}
    assert set(sensor_messages.READERS) == set(STATE_TYPES)


# joint states


@given(
    st.permutations(tuple(zip(NAMES, VALUES, strict=True))),
    st.permutations(NAMES),
    st.integers(1, 4),
    st.sampled_from(['position', 'velocity', 'effort']),
)
@patient
def test_joints_are_found_by_name_whatever_the_order(pairs, wanted, count, field):
    message = JointState(name=[name for name, _ in pairs])
    setattr(message, field, [value for _, value in pairs])
    found = sensor_messages.source_values(
        serialize_message(message), joints(*wanted[:count], field=field)
    )
    assert found.tolist() == [dict(pairs)[name] for name in wanted[:count]]


def test_a_joint_that_is_missing_is_named():
    message = JointState(name=['lift', 'pan'], position=[1.0, 2.0])
    error = refusal(message, joints('pan', 'flex'))
    assert error.reason == 'missing_joint'
    assert str(error) == "topic: no ['flex']; it has ['lift', 'pan']"


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf, 1e39])
def test_a_joint_that_is_not_finite_is_named(value):
    error = refusal(JointState(name=['pan', 'lift'], position=[1.0, value]), joints('pan', 'lift'))
    assert error.reason == 'not_finite'
    assert str(error) == f'topic: lift is {value:g}'


def test_a_joint_that_nobody_asks_for_may_be_anything():
    message = JointState(name=['pan', 'spare'], position=[1.0, math.nan])
    assert sensor_messages.source_values(serialize_message(message), joints('pan')).tolist() == [
        1.0
    ]


@pytest.mark.parametrize(
    ('names', 'positions', 'reason'),
    [
        (['pan'], [], 'wrong_shape'),
        (['pan'], [1.0, 2.0], 'wrong_shape'),
        ([], [1.0], 'wrong_shape'),
        ([], [], 'missing_joint'),
        (['pan', 'pan'], [1.0, 2.0], 'doubled_joint'),
    ],
)
def test_a_joint_state_that_contradicts_itself_is_refused(names, positions, reason):
    message = JointState(name=names, position=positions)
    assert refusal(message, joints('pan')).reason == reason


def test_a_field_that_is_empty_is_not_taken_for_another():
    message = JointState(name=['pan'], position=[1.0])
    assert 'topic: 1 names and 0 of effort' in str(refusal(message, joints('pan', field='effort')))


# odometry


def odometry(*, yaw_rad: float = 0.0, scale: float = 1.0) -> Odometry:
    message = Odometry()
    pose, twist = message.pose.pose, message.twist.twist
    pose.position.x, pose.position.y, pose.position.z = 1.0, 2.0, 3.0
    twist.linear.x, twist.linear.y, twist.linear.z = 4.0, 5.0, 6.0
    twist.angular.x, twist.angular.y, twist.angular.z = 7.0, 8.0, 9.0
    pose.orientation = Quaternion(
        x=0.0, y=0.0, z=scale * math.sin(yaw_rad / 2), w=scale * math.cos(yaw_rad / 2)
    )
    return message


@given(st.permutations(ODOMETRY_FIELDS), st.integers(1, 10))
@patient
def test_an_odometry_gives_its_fields_in_the_order_asked_for(fields, count):
    expected = {
        **{f'pose.{axis}': value for axis, value in zip('xyz', (1.0, 2.0, 3.0), strict=True)},
        **{f'linear.{axis}': value for axis, value in zip('xyz', (4.0, 5.0, 6.0), strict=True)},
        **{f'angular.{axis}': value for axis, value in zip('xyz', (7.0, 8.0, 9.0), strict=True)},
        'pose.yaw': 0.5,
    }
    raw = serialize_message(odometry(yaw_rad=0.5))
    found = sensor_messages.source_values(raw, source('nav_msgs/Odometry', *fields[:count]))
    assert found == pytest.approx([expected[field] for field in fields[:count]])


@given(st.floats(-3.1, 3.1), st.sampled_from([1.0, -1.0, 0.98, 3.0]))
@patient
def test_a_yaw_comes_from_a_rotation_of_any_length(yaw_rad, scale):
    raw = serialize_message(odometry(yaw_rad=yaw_rad, scale=scale))
    found = sensor_messages.source_values(raw, source('nav_msgs/Odometry', 'pose.yaw'))
    assert found == pytest.approx([yaw_rad], abs=1e-9)


def turned(yaw_rad: float, pitch_rad: float, roll_rad: float) -> Quaternion:
    """Return first a roll around x, then a pitch around y, then a yaw around z."""

    def product(p: tuple, q: tuple) -> tuple:
        (a, b, c, d), (e, f, g, h) = p, q
        return (
            a * e - b * f - c * g - d * h,
            a * f + b * e + c * h - d * g,
            a * g - b * h + c * e + d * f,
            a * h + b * g - c * f + d * e,
        )

    def half(angle_rad: float) -> tuple[float, float]:
        return math.cos(angle_rad / 2), math.sin(angle_rad / 2)

    (cy, sy), (cp, sp), (cr, sr) = half(yaw_rad), half(pitch_rad), half(roll_rad)
    w, x, y, z = product(product((cy, 0, 0, sy), (cp, 0, sp, 0)), (cr, sr, 0, 0))
    return Quaternion(x=x, y=y, z=z, w=w)


tilts = st.floats(-1.4, 1.4)


@given(st.floats(-3.1, 3.1), tilts, tilts)
@patient
def test_a_tilt_is_no_yaw(yaw_rad, pitch_rad, roll_rad):
    found = sensor_messages.yaw(turned(yaw_rad, pitch_rad, roll_rad))
    assert found == pytest.approx(yaw_rad, abs=1e-6)


def test_a_rotation_that_was_never_filled_in_is_no_yaw():
    message = Odometry()
    message.pose.pose.orientation.w = 0.0
    assert refusal(message, source('nav_msgs/Odometry', 'pose.yaw')).reason == 'not_finite'
    sensor_messages.source_values(
        serialize_message(message), source('nav_msgs/Odometry', 'linear.x')
    )


def test_an_odometry_that_is_not_finite_is_refused():
    message = odometry()
    message.twist.twist.linear.x = math.nan
    error = refusal(message, source('nav_msgs/Odometry', 'pose.x', 'linear.x'))
    assert str(error) == 'topic: linear.x is nan'


# arrays and several sources


def test_an_array_gives_its_numbers_in_order():
    raw = serialize_message(Float64MultiArray(data=[3.0, 1.0]))
    found = sensor_messages.source_values(
        raw, source('std_msgs/Float64MultiArray', 'force', 'range')
    )
    assert found.tolist() == [3.0, 1.0]


@pytest.mark.parametrize('count', [0, 1, 3])
def test_an_array_of_another_length_is_refused(count):
    array = source('std_msgs/Float64MultiArray', 'force', 'range')
    error = refusal(Float64MultiArray(data=[1.0] * count), array)
    assert str(error) == f"topic: {count} numbers for ['force', 'range']"
    assert error.reason == 'wrong_shape'


def test_several_sources_are_put_together_in_order():
    sources = (
        source('nav_msgs/Odometry', 'linear.x'),
        joints('lift', 'pan'),
        source('std_msgs/Float64MultiArray', 'range'),
        joints('pan', field='velocity'),
    )
    state = JointState(name=['pan', 'lift'], position=[1.0, 2.0], velocity=[3.0, 4.0])
    messages = (odometry(), state, Float64MultiArray(data=[9.0]), state)
    found = sensor_messages.state_vector(
        [serialize_message(message) for message in messages], sources
    )
    assert found.tolist() == [4.0, 2.0, 1.0, 9.0, 3.0]
    assert found.dtype == np.float64


# what a person sends: each value arrives at its action, and nonsense at none


Axes = dict[str, JoyAxis]
NO_AXES: Axes = {}
JOINTS = 'linear.x', 'angular.z', 'linear.y'
FINITE = st.floats(-1e30, 1e30)


def robot(kind: str, axes: Axes = NO_AXES) -> RobotDescription:
    motion = Motion.VELOCITY if 'Twist' in kind else Motion.POSITION
    actions = tuple(ActionLimit(f'my {j}', j, motion, -9.0, 9.0, 1.0) for j in JOINTS)
    output = CommandOutput('std_msgs/Float64MultiArray' if kind == JOY else kind, 'commands')
    device = InterventionInput('leader', kind, 0.2, axes=axes if kind == JOY else {})
    return RobotDescription('r', 50.0, (), (), actions, output, intervention=device)


def target(message: object, kind: str, axes: Axes = NO_AXES) -> list[float]:
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
    axes = {'my angular.z': JoyAxis(1, -2.0)}
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
        target(message, kind, {'my linear.x': JoyAxis(0, 1.0)})
    assert refused.value.reason == reason


@pytest.mark.parametrize('kind', [*COMMAND_TYPES, JOY])
@given(raw=st.binary(max_size=200))
def test_bytes_of_anything_are_a_target_or_malformed(kind, raw):
    try:
        found = person_messages.person_target(raw, robot(kind, {'my linear.x': JoyAxis(0, 1.0)}))
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
