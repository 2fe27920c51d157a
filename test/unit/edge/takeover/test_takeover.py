# SPDX-License-Identifier: Apache-2.0
"""Who commands: the table of takeover, and what counts as a command of a person."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from msgspec import structs, UNSET
import numpy as np
import pytest
from support.edge.controller_rig import arm

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge import wiring
from lerobot_serve.edge.control.authority import Intervention
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.robot.description import CameraInput, RobotDescription
from lerobot_serve.edge.robot.file_format import Deadman, InterventionInput
from lerobot_serve.edge.takeover import (
    COMMAND,
    DEADMAN,
    DeviceState,
    intervention_of,
    NOT_CONFIGURED,
    PersonInput,
    PersonTarget,
    Takeover,
)
from lerobot_serve.parameters import ParameterError
from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction

TIMEOUT_NS = 200_000_000
LEADER = InterventionInput('leader', 'sensor_msgs/JointState', TIMEOUT_NS / 1e9)
HELD = structs.replace(LEADER, deadman=Deadman(4, 'joy'))


class Messages:
    """A command is its own value; a deadman is pressed when its message says so."""

    decoded = 0

    def person_target(self, raw: object, robot: object) -> PersonTarget:
        self.decoded += 1
        if raw == 'nan':
            raise Malformed('not_finite', 'no number')
        return PersonTarget(np.array([float(raw)]))

    def is_button_pressed(self, raw: object, topic: str, button: int) -> bool:
        assert (topic, button) == ('joy', 4)
        if raw == 'broken':
            raise Malformed('wrong_shape', 'no button')
        return raw == 'held'


def device(description: InterventionInput = LEADER) -> tuple[PersonInput, list[str]]:
    dropped: list[str] = []
    robot = replace(arm(), intervention=description)
    return PersonInput(robot, description, Messages(), count_dropped=dropped.append), dropped


@pytest.mark.parametrize(('state', 'taken'), product(DeviceState, (False, True)))
def test_the_table_of_every_combination(state, taken):
    if not taken:
        expected = Intervention.NONE
    elif state is DeviceState.READY:
        expected = Intervention.COMMANDING
    else:
        expected = Intervention.LOST
    assert intervention_of(state, is_taken_over=taken) is expected


def test_the_values_are_those_of_the_messages():
    for each in Intervention:
        assert getattr(EdgeState, f'INTERVENTION_{each.name}') == each.value


def test_the_sources_are_the_parts_with_control_authority():
    from lerobot_serve.edge.control.authority import ControlAuthority

    for each in ControlAuthority:
        assert getattr(ExecutedAction, f'SOURCE_{each.name}') == each.value


def test_a_command_counts_until_its_timeout():
    person, _ = device()
    assert person.read(0).state is DeviceState.NO_COMMAND
    person.deposit([COMMAND], 0.5, 10, 77)
    reading = person.read(10 + TIMEOUT_NS)
    assert (reading.state, reading.target.values.tolist(), reading.input_ids) == (
        DeviceState.READY,
        [0.5],
        (77,),
    )
    late = person.read(11 + TIMEOUT_NS)
    assert (late.state, late.target, late.input_ids) == (DeviceState.NO_COMMAND, None, (77,))


@pytest.mark.parametrize(
    ('message', 'age_ns', 'expected'),
    [
        ('held', 0, DeviceState.READY),
        ('held', TIMEOUT_NS, DeviceState.READY),
        ('held', TIMEOUT_NS + 1, DeviceState.NO_DEADMAN),
        ('free', 0, DeviceState.RELEASED),
        ('broken', 0, DeviceState.NO_DEADMAN),
    ],
)
def test_a_deadman_must_be_held_now(message, age_ns, expected):
    person, dropped = device(HELD)
    person.deposit([COMMAND], 0.5, TIMEOUT_NS, 1)
    person.deposit([DEADMAN], message, TIMEOUT_NS - age_ns, 2)
    assert [person.read(TIMEOUT_NS).state for _ in range(2)] == [expected] * 2
    # counted once, though it is read in each control step
    assert dropped == (['wrong_shape'] if message == 'broken' else [])


def test_a_deadman_that_was_never_heard_of_is_not_held():
    person, _ = device(HELD)
    person.deposit([COMMAND], 0.5, 0, 1)
    assert person.read(0).state is DeviceState.NO_DEADMAN


def test_an_unusable_command_is_none_and_is_counted_once():
    person, dropped = device()
    person.deposit([COMMAND], 'nan', 0, 1)
    assert [person.read(1).state for _ in range(3)] == [DeviceState.UNUSABLE] * 3
    assert dropped == ['not_finite']
    person.deposit([COMMAND], 0.5, 2, 3)
    assert [person.read(2).target.values[0] for _ in range(3)] == [0.5] * 3


def test_two_sources_command_nothing():
    person, _ = device()
    takeover = Takeover(person, RobotDecisions())
    person.deposit([COMMAND], 0.5, 0, 1)
    takeover.begin()
    assert takeover.read(0).intervention is Intervention.COMMANDING
    person.blocked_by = DeviceState.TWO_SOURCES
    assert takeover.read(0)[:2] == (Intervention.LOST, None)
    assert takeover.lost_reason == 'more than one publisher on leader'
    assert 'Stop all but one' in takeover.refusal()
    person.blocked_by = DeviceState.CONFLICT
    assert takeover.read(0)[:2] == (Intervention.LOST, None)
    assert takeover.lost_reason == 'another edge controller commands the robot'


def test_without_a_takeover_a_device_moves_nothing():
    person, _ = device()
    person.deposit([COMMAND], 0.5, 0, 1)
    assert Takeover(person, RobotDecisions()).read(0)[:2] == (Intervention.NONE, None)


def test_a_robot_without_a_device_refuses():
    takeover = Takeover(None, RobotDecisions())
    assert takeover.refusal() == NOT_CONFIGURED
    assert takeover.read(0) == (Intervention.NONE, None, ())
    assert not takeover.lost_reason


def test_rates_move_positions_from_where_they_are_and_set_velocities():
    is_velocity, here = np.array([False, True]), np.array([1.0, 9.0])
    target = PersonTarget(np.array([2.0, 3.0]))
    assert target.at(here, is_velocity, 0.1).tolist() == [2.0, 3.0]
    rate = target._replace(is_rate=True)
    assert rate.at(here, is_velocity, 0.1).tolist() == [1.2, 3.0]


# the device of a person has topics of its own, whatever they are called


def robot(topic: str, deadman: str = '') -> RobotDescription:
    device = InterventionInput(
        topic, 'std_msgs/Float64MultiArray', 0.2, Deadman(0, deadman) if deadman else UNSET
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
