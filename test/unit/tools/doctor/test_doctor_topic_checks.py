# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of topics and of ros2_control, from what was seen of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.edge.robot_rig import ROBOTS, SIM_ARM
from support.tools.findings import listed

from lerobot_serve.edge.robot.file import load
from lerobot_serve.tools.doctor import ros2_control
from lerobot_serve.tools.doctor.finding import FindingLevel
from lerobot_serve.tools.doctor.ros2_control import (
    ControllerFacts,
    ControllerManagerFacts,
    TIMEOUTS,
)
from lerobot_serve.tools.doctor.topics import (
    check_commands,
    check_input,
    CommandTopic,
    InputTraffic,
    TopicEndpoint,
)

KIND, OTHER = 'sensor_msgs/Image', 'sensor_msgs/CompressedImage'
CAMERA = TopicEndpoint('/camera_driver', KIND)
MS = 1_000_000
POSITIONS, VELOCITIES = load(SIM_ARM), load(ROBOTS / 'diff_drive.yaml')


def heard(
    *arrivals_ms: int, publishers: tuple[TopicEndpoint, ...] = (CAMERA,), **more: object
) -> InputTraffic:
    arrivals_ns = tuple(ms * MS for ms in arrivals_ms)
    return InputTraffic(
        'front', '/front', KIND, 0.1, publishers, arrivals_ns, more.pop('sampled_s', 2.0), **more
    )


INPUTS = [
    heard(0, 33, 66, 99),
    heard(publishers=()),
    heard(publishers=(TopicEndpoint('/camera_driver', OTHER),)),
    heard(publishers=(TopicEndpoint('/camera_driver', KIND, 'reliability'),)),
    heard(),
    heard(0, 33, decode_error="no ['pan']"),
    heard(0, 500, 1000),
    heard(7),
    heard(0, 10, 20, 30, 150, 160),
]


@pytest.mark.golden
def test_each_trouble_of_a_topic_has_its_remedy(golden):
    golden.holds('doctor/inputs.txt', listed(map(check_input, INPUTS)))


def test_one_message_is_enough_for_an_input_that_may_be_slow():
    assert check_input(heard(7, sampled_s=0.05)).verdict is FindingLevel.OK


TYPE = 'trajectory_msgs/JointTrajectory'
TAKER = TopicEndpoint('/arm_controller', TYPE)


def commands(*subscribers: TopicEndpoint, publishers: tuple[str, ...] = ()) -> CommandTopic:
    return CommandTopic('/joint_trajectory', TYPE, subscribers, publishers)


ELSEWHERE = ('/arm/commands', OTHER), ('/arm/joint_trajectory', TYPE)
COMMANDS = [
    commands(TAKER),
    commands(),
    commands(TopicEndpoint('/arm', OTHER)),
    commands(TopicEndpoint('/base', 'geometry_msgs/TwistStamped')),
    replace(commands(), alternatives=ELSEWHERE),
    commands(TopicEndpoint('/arm', TYPE, 'durability')),
    commands(TopicEndpoint('/arm', OTHER), TAKER),
    commands(TAKER, publishers=('/robot_1/edge_controller',)),
    commands(TAKER, publishers=('/teleop',)),
]


@pytest.mark.golden
def test_who_takes_commands_and_who_else_gives_them(golden):
    found = [finding for seen in COMMANDS for finding in check_commands(seen)]
    golden.holds('doctor/commands.txt', listed(found))


def manager(*controllers: ControllerFacts, enforces: bool | None = True) -> ControllerManagerFacts:
    return ControllerManagerFacts('/controller_manager', enforces, controllers)


def controller(*, subscribes_commands: bool = True, **parameters: object) -> ControllerFacts:
    return ControllerFacts('/base', parameters, subscribes_commands)


ARRAYS = load(ROBOTS / 'so101.yaml')
JOINTS = list(ARRAYS.action_joints)
SPLINES = 'interpolate_from_desired_state'
MANAGERS = [
    ([], POSITIONS),
    ([manager()], None),
    ([manager(enforces=False)], None),
    ([manager(enforces=None)], None),
    ([ControllerManagerFacts('/controller_manager', error='no answer')], None),
]
# what a controller is, whether it takes the commands, and of which robot
CONTROLLERS = [
    *(
        ({key: value}, takes, robot)
        for key in TIMEOUTS
        for value, takes, robot in (
            (0.5, True, VELOCITIES),
            (0.0, True, VELOCITIES),
            (0.0, True, POSITIONS),
            (0.0, False, VELOCITIES),
            # without a robot file nobody knows what it would do
            (0.0, False, None),
            (30.0, True, VELOCITIES),
            ('soon', True, VELOCITIES),
            (float('nan'), True, VELOCITIES),
            (True, True, VELOCITIES),
        )
    ),
    ({}, True, VELOCITIES),
    ({}, True, POSITIONS),
    ({}, False, VELOCITIES),
    *(
        (parameters, takes, robot)
        for robot, parameters in (
            (POSITIONS, {SPLINES: False}),
            (POSITIONS, {SPLINES: True}),
            # it sends no trajectories
            (ARRAYS, {SPLINES: False}),
            (POSITIONS, {'joints': JOINTS[::-1]}),
            (POSITIONS, {'joints': JOINTS[1:]}),
            (ARRAYS, {'joints': JOINTS}),
            (ARRAYS, {'joints': JOINTS[::-1]}),
            (VELOCITIES, {'joints': JOINTS, 'cmd_vel_timeout': 0.5}),
        )
        for takes in (True, False)
    ),
]


@pytest.mark.golden
def test_what_is_said_of_managers_and_controllers(golden):
    cases = [(f'manager {number}', *case) for number, case in enumerate(MANAGERS)]
    cases.append(('no answer', [manager(ControllerFacts('/base', {}, True, 'no answer'))], None))
    for parameters, takes, robot in CONTROLLERS:
        name = f'{parameters}{" takes commands" if takes else ""} of {robot and robot.name}'
        found = manager(controller(subscribes_commands=takes, **parameters))
        cases.append((name, [found], robot))
    golden.holds(
        'doctor/ros2_control.txt',
        '\n'.join(
            f'{name}\n{listed(ros2_control.check_controllers(found, robot))}'
            for name, found, robot in cases
        ),
    )


ENDS = st.lists(
    st.builds(
        TopicEndpoint, st.just('/n'), st.sampled_from([KIND, OTHER]), st.sampled_from(['', 'q'])
    ),
    max_size=3,
).map(tuple)
ARRIVALS = st.lists(st.integers(0, 10**10), max_size=30).map(lambda times: tuple(sorted(times)))


@given(
    st.builds(
        InputTraffic,
        st.just('front'),
        st.just('/front'),
        st.just(KIND),
        st.floats(0.001, 60),
        ENDS,
        ARRIVALS,
        st.floats(0, 60),
        st.sampled_from(['', 'no joint']),
    )
)
def test_whatever_is_heard_is_judged(seen):
    """A finding without the remedy that it needs could not even be made."""
    finding = check_input(seen)
    if finding.verdict is FindingLevel.OK:
        assert seen.arrivals_ns
        assert not seen.decode_error


@given(ENDS, st.lists(st.sampled_from(['/teleop', '/a/edge_controller'])).map(tuple))
def test_whoever_takes_commands_is_judged(takers, others):
    findings = check_commands(CommandTopic('/c', KIND, takers, others))
    assert (findings[0].verdict is FindingLevel.OK) is (TopicEndpoint('/n', KIND) in takers)


@given(
    st.lists(
        st.builds(
            ControllerManagerFacts,
            st.just('/m'),
            st.none() | st.booleans(),
            st.lists(
                st.builds(
                    ControllerFacts,
                    st.just('/c'),
                    st.dictionaries(
                        st.sampled_from(TIMEOUTS), st.floats() | st.text() | st.booleans()
                    ),
                    st.booleans(),
                    st.sampled_from(['', 'no answer']),
                )
            ).map(tuple),
            st.sampled_from(['', 'no answer']),
        ),
        max_size=3,
    ),
    st.sampled_from([None, POSITIONS, VELOCITIES]),
)
def test_whatever_a_manager_tells_is_judged(managers, robot):
    assert len(ros2_control.check_controllers(managers, robot)) >= max(1, len(managers))
