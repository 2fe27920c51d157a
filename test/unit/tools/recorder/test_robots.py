# SPDX-License-Identifier: Apache-2.0
"""What a robot file makes the recorder record, and what a hostile one does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.paths import REPOSITORY
from support.tools.recorder_rig import EDGE, ROBOT_FILE, state, text

from lerobot_serve.edge.robot.file import load
from lerobot_serve.edge.robot.file_format import RobotFileError
from lerobot_serve.edge.robot.input_topics import input_topics
from lerobot_serve.experience.recorded_episode import RECORDED_TYPE
from lerobot_serve.tools.bags.message import BagMessage, EDGE_STATE, EXECUTED, TEXT_TYPE
from lerobot_serve.tools.recorder import known_robots
from lerobot_serve.tools.recorder.known_robots import (
    KnownRobots,
    parent,
    resolved,
    robot_topics,
    ROBOTS_LIMIT,
)

SHIPPED = sorted((REPOSITORY / 'config' / 'robots').glob('*.yaml'))


# 10^5 times a word
ALIAS_BOMB = 'a0: &a0 lol\n' + ''.join(
    f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 10)}]\n' for n in range(1, 6)
)


def learned(wanted: str = '', content: str = ROBOT_FILE) -> KnownRobots:
    robots = KnownRobots(wanted)
    robots.learn(BagMessage(f'{EDGE}/robot_file', TEXT_TYPE, 1, text(content)))
    robots.learn(BagMessage(f'{EDGE}/state', EDGE_STATE, 1, state('ep')))
    return robots


def test_topics_are_resolved_as_the_edge_does():
    assert robot_topics(ROBOT_FILE, EDGE) == {
        '/arm/joint_states': 'sensor_msgs/msg/JointState',
        '/cam/image': 'sensor_msgs/msg/Image',
        '/arm/edge_controller/command': 'std_msgs/msg/Float64MultiArray',
        '/arm/leader/joint_states': 'sensor_msgs/msg/JointState',
        '/arm/joy': 'sensor_msgs/msg/Joy',
    }


@pytest.mark.parametrize('path', SHIPPED, ids=lambda path: path.stem)
def test_each_shipped_robot_file_is_understood(path):
    robot = load(path)
    wanted = {resolved(each.topic, EDGE) for each in input_topics(robot).values()}
    wanted.add(resolved(robot.command.topic, EDGE))
    if robot.intervention:
        wanted.add(resolved(robot.intervention.topic, EDGE))
    assert wanted <= set(robot_topics(path.read_text(), EDGE))


def test_a_topic_without_a_type_has_the_default_of_robot_files():
    text = 'state: [{topic: s}]\ncommand: {topic: c}\nintervention: {topic: /leader}\n'
    # as edges take it, too
    text += 'cameras: {front: {topic: /cam, type: sensor_msgs/msg/CompressedImage}}'
    found = robot_topics(text, EDGE)
    assert found['/cam'] == 'sensor_msgs/msg/CompressedImage'
    assert found['/leader'] == 'sensor_msgs/msg/JointState'
    assert found[resolved('s', EDGE)] == 'sensor_msgs/msg/JointState'
    assert found[resolved('c', EDGE)] == 'trajectory_msgs/msg/JointTrajectory'


@pytest.mark.parametrize(
    'content',
    [
        '[',
        'state: [{topic: "/a b"}]',
        'state: [{topic: ../../x}]',
        'state: [{topic: a, type: std_msgs/String}]',
        'state: [{topic: 7}]',
        'state: [{topic: a, type: [1]}]',
        'cameras: {a: {topic: "/x/_hidden__y"}}',
        'command: {topic: "' + 'a' * 300 + '"}',
        'cameras: {' + ', '.join(f'c{i}: {{topic: t{i}}}' for i in range(100)) + '}',
        '- ' * 3000,
        'a: ' + 'x' * 300_000,
    ],
    ids=lambda text: text[:20],
)
def test_a_hostile_robot_file_is_refused(content):
    with pytest.raises(RobotFileError, match='robot_file'):
        robot_topics(content, EDGE)
    robots = learned(content=content)
    assert not robots.robots[EDGE].topics


@pytest.mark.parametrize(
    'content', ['state: [&a {topic: x}, *a]', ALIAS_BOMB + 'state: [{topic: *a5}]']
)
def test_an_alias_is_refused_before_it_is_followed(content):
    with pytest.raises(RobotFileError, match=r'line \d+, column \d+: alias \*a'):
        robot_topics(content, EDGE)


def test_a_robot_file_larger_than_64_kib_is_refused():
    fits = 'state: [{topic: a}]\n#'
    fits += 'x' * ((64 << 10) - len(fits))
    assert robot_topics(fits, EDGE)
    with pytest.raises(RobotFileError, match='65537 bytes, at most 65536 are allowed'):
        robot_topics(fits + 'x', EDGE)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(content):
    complaint = KnownRobots().learn(
        BagMessage(f'{EDGE}/robot_file', TEXT_TYPE, 1, text(content.replace('\0', '')))
    )
    assert isinstance(complaint, str)


def test_a_text_is_parsed_once_until_another_comes(monkeypatch):
    robots, parsed = KnownRobots(), []

    def parse(content: str, node: str) -> dict[str, str]:
        parsed.append(content)
        return robot_topics(content, node)

    monkeypatch.setattr(known_robots, 'robot_topics', parse)
    complaints = [
        robots.learn(BagMessage(f'{EDGE}/robot_file', TEXT_TYPE, 1, text(content)))
        for content in ('[', '[', ROBOT_FILE, ROBOT_FILE, '[')
    ]
    assert parsed == ['[', ROBOT_FILE, '[']
    assert [bool(each) for each in complaints] == [True, False, False, False, True]
    assert robots.robots[EDGE].topics == robot_topics(ROBOT_FILE, EDGE)


def test_a_file_outside_is_not_opened():
    assert robot_topics('urdf: /etc/passwd\nstate: [{topic: a}]', EDGE)


def test_the_number_of_robots_is_bounded():
    robots = KnownRobots()
    for number in range(ROBOTS_LIMIT + 1):
        complaint = robots.learn(BagMessage(f'/r{number}/e/state', EDGE_STATE, 1, state('ep')))
    assert f'{ROBOTS_LIMIT} robots' in complaint
    assert len(robots.robots) == ROBOTS_LIMIT


@pytest.mark.parametrize('wanted', ['', 'arm_1', '/arm/edge_controller', 'arm', 'arm_2'])
def test_which_topics_are_recorded(wanted):
    robots = learned(wanted)
    is_wanted = wanted != 'arm_2'
    for topic, kind, expected in (
        ('/arm/joint_states', 'sensor_msgs/msg/JointState', is_wanted),
        # another type than the robot file says
        ('/cam/image', 'sensor_msgs/msg/CompressedImage', False),
        ('/other/joint_states', 'sensor_msgs/msg/JointState', False),
        (f'{EDGE}/executed_action', EXECUTED, is_wanted),
        (f'{EDGE}/state', EDGE_STATE, True),
        ('/diagnostics', 'diagnostic_msgs/msg/DiagnosticArray', True),
        # announcements are of other bags
        ('/recorded_episodes', RECORDED_TYPE, False),
        ('/_hidden/x', 'lerobot_serve_interfaces/msg/EdgeState', False),
    ):
        assert robots.takes(topic, kind) is expected, topic
    assert parent(EDGE) == '/arm'
