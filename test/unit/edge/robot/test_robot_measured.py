# SPDX-License-Identifier: Apache-2.0
"""Which value of the state tells where an action's joint is."""

from __future__ import annotations

import numpy as np
import pytest

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.edge.robot.description import CommandOutput, RobotDescription, StateSource
from lerobot_serve.edge.robot.measurement import measured_values, measuring_indices


def joints(topic: str, fields: str, names: str, field: str = 'position') -> StateSource:
    return StateSource(
        topic, 'sensor_msgs/JointState', tuple(fields), field, tuple(names.split()), 1.0
    )


def action(name: str, joint: str, motion: Motion = Motion.POSITION) -> ActionLimit:
    return ActionLimit(name, joint, motion, -1.0, 1.0, 0.1)


ARRAY = StateSource('t', 'std_msgs/Float64MultiArray', ('x', 'y'), '', ('x', 'y'), 1.0)
ODOMETRY = StateSource('t', 'nav_msgs/Odometry', ('pose.x', 'linear.x'), '', ('p', 'v'), 1.0)


@pytest.mark.parametrize(
    ('state', 'actions', 'expected'),
    [
        # in whatever order, by the joint
        ([joints('t', 'ab', 'x y')], [action('1', 'b'), action('2', 'a')], (1, 0)),
        # a name counts before a joint
        ([joints('t', 'ab', 'y x')], [action('x', 'a')], (1,)),
        # a velocity is no position
        ([joints('t', 'a', 'a', 'velocity')], [action('a', 'a')], (None,)),
        ([joints('t', 'a', 'a', 'effort')], [action('a', 'a')], (None,)),
        ([joints('t', 'a', 'v', 'velocity'), joints('t', 'a', 'p')], [action('1', 'a')], (1,)),
        # two arms whose joints have the same names
        (
            [joints('left', 'a', 'la'), joints('right', 'a', 'ra')],
            [action('ra', 'r'), action('la', 'l')],
            (1, 0),
        ),
        ([joints('left', 'a', 'la'), joints('right', 'a', 'ra')], [action('1', 'a')], (None,)),
        ([ARRAY], [action('y', 'b'), action('z', 'x')], (1, 0)),
        ([ODOMETRY], [action('1', 'linear.x', Motion.VELOCITY)], (1,)),
        ([ODOMETRY], [action('1', 'linear.x'), action('2', 'pose.x')], (None, 0)),
    ],
)
def test_an_action_is_measured_by_its_name_or_its_joint(state, actions, expected):
    robot = RobotDescription('r', 30, tuple(state), (), tuple(actions), CommandOutput('', 't'))
    assert measuring_indices(robot) == expected


def test_what_nothing_measures_stands():
    assert measured_values(np.array([1.0, 2.0]), (1, None, 0)).tolist() == [2.0, 0.0, 1.0]
