# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of topics and of ros2_control, from what was seen of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.edge.robot_rig import ROBOTS, SIM_ARM

from lerobot_serve.edge.robot.file import load
from lerobot_serve.tools.doctor.finding import FindingLevel
from lerobot_serve.tools.doctor.ros_graph import ros2_control
from lerobot_serve.tools.doctor.ros_graph.ros2_control import (
    ControllerFacts,
    ControllerManagerFacts,
    TIMEOUTS,
)
from lerobot_serve.tools.doctor.ros_graph.topics import (
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


def test_a_topic_that_is_alive_tells_its_rate():
    finding = check_input(heard(0, 33, 66, 99))
    assert finding.verdict is FindingLevel.OK
    assert '30.3 Hz' in finding.found


@pytest.mark.parametrize(
    ('seen', 'verdict', 'found', 'remedy'),
    [
        (heard(publishers=()), 'failure', 'no publisher on /front', '--namespace'),
        (
            heard(publishers=(TopicEndpoint('/camera_driver', OTHER),)),
            'failure',
            f'published as {OTHER}, the robot file has {KIND}',
            'correct type',
        ),
        (
            heard(publishers=(TopicEndpoint('/camera_driver', KIND, 'reliability'),)),
            'failure',
            'QoS of /camera_driver does not match: reliability',
            'qos_overrides',
        ),
        (heard(), 'failure', 'published by /camera_driver', 'log of /camera_driver'),
        (
            heard(0, 33, decode_error="no ['pan']"),
            'failure',
            "cannot be decoded: no ['pan']",
            'robot file',
        ),
        (heard(0, 500, 1000), 'failure', '2.0 Hz, with 0.50 s', 'max_age_s'),
        (heard(7), 'failure', 'one message, with 2.00 s', 'max_age_s'),
        (heard(0, 10, 20, 30, 150, 160), 'warning', 'with 0.12 s', 'max_age_s'),
    ],
)
def test_each_trouble_of_a_topic_has_its_remedy(seen, verdict, found, remedy):
    finding = check_input(seen)
    assert finding.verdict.value == verdict
    assert found in finding.found
    assert remedy in finding.remedy


def test_one_message_is_enough_for_an_input_that_may_be_slow():
    assert check_input(heard(7, sampled_s=0.05)).verdict is FindingLevel.OK


TYPE = 'trajectory_msgs/JointTrajectory'
TAKER = TopicEndpoint('/arm_controller', TYPE)


def commands(*subscribers: TopicEndpoint, publishers: tuple[str, ...] = ()) -> CommandTopic:
    return CommandTopic('/joint_trajectory', TYPE, subscribers, publishers)


@pytest.mark.parametrize(
    ('seen', 'verdicts', 'found'),
    [
        (commands(TAKER), ['ok'], 'subscribed by /arm_controller'),
        (commands(), ['failure'], 'no subscriber on /joint_trajectory'),
        (commands(TopicEndpoint('/arm', OTHER)), ['failure'], f'is subscribed as {OTHER}'),
        (
            replace(
                commands(),
                alternatives=(('/arm/commands', OTHER), ('/arm/joint_trajectory', TYPE)),
            ),
            ['failure'],
            f'with a subscriber: /arm/commands ({OTHER}), /arm/joint_trajectory ({TYPE})',
        ),
        (
            commands(TopicEndpoint('/arm', TYPE, 'durability')),
            ['failure'],
            'does not match: durability',
        ),
        (commands(TopicEndpoint('/arm', OTHER), TAKER), ['ok'], 'subscribed by /arm_controller'),
        (commands(TAKER, publishers=('/robot_1/edge_controller',)), ['ok'], 'subscribed by'),
        (commands(TAKER, publishers=('/teleop',)), ['ok', 'warning'], '/teleop also publishes'),
    ],
)
def test_who_takes_commands_and_who_else_gives_them(seen, verdicts, found):
    findings = check_commands(seen)
    assert [finding.verdict.value for finding in findings] == verdicts
    assert found in findings[-1].found


def manager(*controllers: ControllerFacts, enforces: bool | None = True) -> ControllerManagerFacts:
    return ControllerManagerFacts('/controller_manager', enforces, controllers)


def judged(found: ControllerManagerFacts, robot=POSITIONS) -> list[str]:
    return [finding.verdict.value for finding in ros2_control.check_controllers([found], robot)]


def test_no_manager_is_nothing_to_check():
    (finding,) = ros2_control.check_controllers([], POSITIONS)
    assert finding.verdict is FindingLevel.SKIPPED


@pytest.mark.parametrize(
    ('found', 'verdict', 'remedy'),
    [
        (manager(), 'ok', ''),
        (manager(enforces=False), 'failure', 'enforce_command_limits: true'),
        (manager(enforces=None), 'warning', 'update ros2_control'),
        (ControllerManagerFacts('/controller_manager', error='no answer'), 'warning', 'hangs'),
    ],
)
def test_limits_that_are_not_enforced(found, verdict, remedy):
    (finding,) = ros2_control.check_controllers([found], None)
    assert finding.verdict.value == verdict
    assert remedy in finding.remedy
    assert '/controller_manager' in finding.name


def controller(*, subscribes_commands: bool = True, **parameters: object) -> ControllerFacts:
    return ControllerFacts('/base', parameters, subscribes_commands)


@pytest.mark.parametrize('key', TIMEOUTS)
@pytest.mark.parametrize(
    ('value', 'takes', 'robot', 'verdict'),
    [
        (0.5, True, VELOCITIES, 'ok'),
        (0.0, True, VELOCITIES, 'failure'),
        (0.0, True, POSITIONS, 'warning'),
        (0.0, False, VELOCITIES, 'warning'),
        # without a robot file nobody knows what it would do
        (0.0, False, None, 'failure'),
        (30.0, True, VELOCITIES, 'warning'),
        ('soon', True, VELOCITIES, 'warning'),
        (float('nan'), True, VELOCITIES, 'warning'),
        (True, True, VELOCITIES, 'warning'),
    ],
)
def test_timeouts_of_controllers(key, value, takes, robot, verdict):
    found = manager(controller(subscribes_commands=takes, **{key: value}))
    assert judged(found, robot) == ['ok', verdict]
    finding = ros2_control.check_controllers([found], robot)[1]
    assert finding.name == f'/base {key}'
    assert (f'set {key}: 0.5' in finding.remedy) is (verdict != 'ok')


@pytest.mark.parametrize(
    ('takes', 'robot', 'verdicts'),
    [
        (True, VELOCITIES, ['ok', 'warning']),
        (True, POSITIONS, ['ok']),
        (False, VELOCITIES, ['ok']),
    ],
)
def test_controllers_that_have_no_timeout(takes, robot, verdicts):
    assert judged(manager(controller(subscribes_commands=takes)), robot) == verdicts


def test_the_remedy_names_type_and_topic_that_are_taken():
    (found,) = check_commands(commands(TopicEndpoint('/base', 'geometry_msgs/TwistStamped')))
    assert 'set `type: geometry_msgs/TwistStamped`' in found.remedy
    elsewhere = (('/arm/commands', OTHER), ('/arm/joint_trajectory', TYPE))
    (found,) = check_commands(replace(commands(), alternatives=elsewhere))
    assert f'set `topic: /arm/joint_trajectory` and `type: {TYPE}`' in found.remedy


ARRAYS = load(ROBOTS / 'so101.yaml')
JOINTS = list(ARRAYS.action_joints)


@pytest.mark.parametrize(
    ('robot', 'parameters', 'verdicts'),
    [
        (POSITIONS, {'interpolate_from_desired_state': False}, ['ok', 'warning']),
        (POSITIONS, {'interpolate_from_desired_state': True}, ['ok', 'ok']),
        # it sends no trajectories
        (ARRAYS, {'interpolate_from_desired_state': False}, ['ok']),
        (POSITIONS, {'joints': JOINTS[::-1]}, ['ok', 'ok']),
        (POSITIONS, {'joints': JOINTS[1:]}, ['ok', 'failure']),
        (ARRAYS, {'joints': JOINTS}, ['ok', 'ok']),
        (ARRAYS, {'joints': JOINTS[::-1]}, ['ok', 'failure']),
        (VELOCITIES, {'joints': JOINTS, 'cmd_vel_timeout': 0.5}, ['ok', 'ok']),
    ],
)
def test_what_a_controller_does_with_commands_is_compared(robot, parameters, verdicts):
    assert judged(manager(controller(**parameters)), robot) == verdicts
    assert judged(manager(controller(subscribes_commands=False, **parameters)), robot)[0] == 'ok'


def test_a_controller_that_does_not_answer_is_told():
    found = manager(ControllerFacts('/base', {}, True, 'no answer'))
    assert judged(found) == ['ok', 'warning']


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
