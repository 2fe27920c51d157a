# SPDX-License-Identifier: Apache-2.0
"""The device of a person has topics of its own, whatever they are called."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.edge.controller_rig import arm

from lerobot_serve.edge import wiring
from lerobot_serve.edge.robot.description import CameraInput, RobotDescription
from lerobot_serve.edge.robot.intervention import Deadman, InterventionInput
from lerobot_serve.parameters import ParameterError


def robot(topic: str, deadman: str = '') -> RobotDescription:
    device = InterventionInput(
        topic, 'std_msgs/Float64MultiArray', 0.2, Deadman(deadman, 0) if deadman else None
    )
    camera = CameraInput('front', 'camera', 'sensor_msgs/Image', 1.0)
    return replace(arm(), cameras=(camera,), intervention=device)


def resolve(topic: str) -> str:
    return topic if topic.startswith('/') else f'/robot_1/{topic}'


def test_topics_of_their_own_are_accepted():
    wiring.check_person_topics(robot('leader', 'joy'), resolve)
    wiring.check_person_topics(arm(), resolve)


@pytest.mark.parametrize(
    ('topic', 'deadman', 'what'),
    [
        ('/robot_1/command', '', 'the command topic'),
        ('leader', '/robot_1/command', 'the command topic'),
        ('/robot_1/camera', '', 'an input topic'),
    ],
)
def test_an_alias_is_refused(topic, deadman, what):
    with pytest.raises(ParameterError, match=what):
        wiring.check_person_topics(robot(topic, deadman), resolve)
