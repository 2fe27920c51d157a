# SPDX-License-Identifier: Apache-2.0
"""The device of a person in a robot's file: what is taken, and each mistake in one line."""

from __future__ import annotations

import pytest
from support.edge.robot_rig import ARM, BASE, changed, REMOVED

from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.file import parse
from lerobot_serve.edge.robot.file_format import RobotFileError
from lerobot_serve.edge.robot.intervention import Deadman, InterventionInput, JOY, JoyAxis

PLACE = 'f: intervention'
PAN = 'shoulder_pan.pos'
AXES = {PAN: {'axis': 0, 'scale': 0.5}}
JOYSTICK = {'topic': 'joy', 'type': JOY, 'axes': AXES}


def parsed(device: object, content: dict = ARM) -> RobotDescription:
    return parse(changed('intervention', device, content), 'f')


def test_a_robot_without_one_has_none():
    assert parse(changed('intervention', REMOVED), 'f').intervention is None


def test_the_least_that_a_device_needs_is_a_topic():
    assert parsed({'topic': 'leader'}).intervention == InterventionInput(
        'leader', 'sensor_msgs/JointState', 0.2
    )


def test_all_that_it_may_say():
    device = {
        'topic': '/leader/joints',
        'type': 'trajectory_msgs/msg/JointTrajectory',
        'timeout_s': 0.5,
        'deadman': {'topic': 'joy', 'button': 4},
    }
    assert parsed(device).intervention == InterventionInput(
        '/leader/joints', 'trajectory_msgs/JointTrajectory', 0.5, Deadman('joy', 4)
    )


def test_a_joystick_has_axes_and_its_own_deadman():
    assert parsed(JOYSTICK | {'deadman': {'button': 1}}).intervention == InterventionInput(
        'joy', JOY, 0.2, Deadman('joy', 1), (JoyAxis(PAN, 0, 0.5),)
    )


@pytest.mark.parametrize(
    ('device', 'text'),
    [
        ('leader', 'must be a group of topic, type, timeout_s, deadman, axes'),
        ({}, 'topic is missing'),
        ({'topic': 'a b'}, 'topic must be the name of a topic'),
        ({'topic': 'a', 'speed': 1}, "unknown field 'speed'"),
        (
            {'topic': 'a', 'type': 'sensor_msgs/Imu'},
            'type must be one of trajectory_msgs/JointTrajectory',
        ),
        ({'topic': 'a', 'timeout_s': 0}, 'timeout_s must be a number from 0.01 to 2, got 0'),
        ({'topic': 'a', 'timeout_s': 60}, 'timeout_s must be a number from 0.01 to 2, got 60'),
        ({'topic': 'a', 'axes': AXES}, 'axes is of sensor_msgs/Joy, and this is'),
        ({'topic': 'a', 'deadman': 4}, 'deadman must be a group of button, topic'),
        ({'topic': 'a', 'deadman': {'button': 4}}, 'deadman: topic is missing'),
        ({'topic': 'a', 'deadman': {'topic': 'joy'}}, 'deadman: button is missing'),
        (
            {'topic': 'a', 'deadman': {'topic': 'joy', 'button': -1}},
            'deadman: button must be a whole number from 0 to 63, got -1',
        ),
        (
            {'topic': 'a', 'deadman': {'topic': 'joy', 'button': 1.5}},
            'deadman: button must be a whole number from 0 to 63, got 1.5',
        ),
        (
            {'topic': 'a', 'deadman': {'topic': 'a', 'button': 1}},
            'deadman: topic a has the type sensor_msgs/JointState; a deadman is a button',
        ),
        ({'topic': 'joint_trajectory'}, 'topic joint_trajectory is the command topic'),
        ({'topic': 'joint_states'}, 'topic joint_states is also a state or camera topic'),
        (
            {'topic': 'a', 'deadman': {'topic': 'camera/front/image_raw', 'button': 0}},
            'topic camera/front/image_raw is also a state or camera topic',
        ),
        ({'topic': 'a', 'type': 'geometry_msgs/Twist'}, 'geometry_msgs/Twist takes velocities'),
        ({'topic': 'joy', 'type': JOY}, 'axes is missing'),
        (JOYSTICK | {'axes': {}}, 'axes must be a mapping of actions to axes, got {}'),
        (JOYSTICK | {'axes': {'tail': {'axis': 0, 'scale': 1}}}, "axes: no action 'tail'"),
        (
            JOYSTICK | {'axes': {PAN: {'axis': 0, 'scale': 0}}},
            'but 0: the axis would move nothing',
        ),
        (JOYSTICK | {'axes': {PAN: {'axis': 0}}}, f'axes: {PAN}: scale is missing'),
    ],
)
def test_a_mistake_is_one_line_with_its_place(device, text):
    with pytest.raises(RobotFileError) as refused:
        parsed(device)
    line = str(refused.value)
    assert line.startswith(PLACE)
    assert text in line
    assert '\n' not in line


def test_a_base_takes_velocities():
    assert parsed({'topic': 'a', 'type': 'geometry_msgs/TwistStamped'}, BASE).intervention
    with pytest.raises(RobotFileError, match='takes positions only'):
        parsed({'topic': 'a', 'type': 'trajectory_msgs/JointTrajectory'}, BASE)
