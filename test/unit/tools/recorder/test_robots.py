# SPDX-License-Identifier: Apache-2.0
"""What a recorder records of a robot: topics, frames as JPEG, and that it is not heard."""

from __future__ import annotations

from contextlib import suppress
import itertools
import threading

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import simplejpeg
from support.paths import REPOSITORY
from support.tools.recorder_rig import EDGE, ROBOT_FILE, state, text

from lerobot_serve.contract.codec import decode, encode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.types import Time
from lerobot_serve.edge.robot.description import input_topics
from lerobot_serve.edge.robot.file import load
from lerobot_serve.edge.robot.file_format import RobotFileError
from lerobot_serve.experience.recorded_episode import RECORDED_TYPE
from lerobot_serve.tools.bags.message import (
    BagMessage,
    CompressedImage,
    EDGE_STATE,
    EXECUTED,
    RAW_TYPE,
    RawImage,
    TEXT_TYPE,
)
from lerobot_serve.tools.recorder import known_robots
from lerobot_serve.tools.recorder.frames import compressed, FrameCompressor
from lerobot_serve.tools.recorder.known_robots import (
    KnownRobots,
    parent,
    resolved,
    robot_topics,
    ROBOTS_LIMIT,
)
from lerobot_serve.tools.recorder.silence import LATE_S, Silence, SILENT_S

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


def image(frame: np.ndarray, encoding: str, *, padding: int = 0, height: int | None = None):
    rows = frame.reshape(frame.shape[0], -1).view(np.uint8)
    rows = np.pad(rows, ((0, 0), (0, padding)))
    size = height or frame.shape[0], frame.shape[1]
    data = rows.tobytes()
    return encode(RawImage(Time(7, 8), 'camera', *size, encoding, 0, rows.shape[1], data))


def picture(channels: int) -> np.ndarray:
    """Return a smooth picture with a colour that shows a swap of channels."""
    frame = np.zeros((48, 64, channels), np.uint8)
    frame[..., 0] = 200
    frame[..., -1] = np.linspace(0, 60, 64)
    return frame


@pytest.mark.parametrize(('encoding', 'channels'), [('rgb8', 3), ('bgr8', 3), ('mono8', 1)])
@pytest.mark.parametrize('padding', [0, 5])
def test_the_picture_is_the_same(encoding, channels, padding):
    frame = picture(channels)
    made = decode(CompressedImage, compressed(image(frame, encoding, padding=padding)))
    assert (made.stamp, made.frame_id, made.format) == (Time(7, 8), 'camera', 'jpeg')
    colors = {'rgb8': 'RGB', 'bgr8': 'BGR', 'mono8': 'GRAY'}[encoding]
    found = simplejpeg.decode_jpeg(bytes(made.data), colors)
    assert np.abs(found.astype(int) - frame).max() <= 6


def test_depth_passes_as_it_is_and_a_lie_is_refused():
    assert compressed(image(np.zeros((4, 4, 1), np.uint16), '16UC1')) is None
    with pytest.raises(Malformed):
        compressed(image(picture(3), 'rgb8', height=1000))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_pass(raw):
    with suppress(Malformed):
        compressed(b'\x00\x01\x00\x00' + raw)


def test_the_compressor_keeps_both_times_and_drops_the_newest_when_full():
    found: list[BagMessage] = []
    compressor = FrameCompressor(found.append, waiting_frames=2)
    raw = image(picture(3), 'rgb8')
    for number in range(3):
        compressor.put(BagMessage('/cam', RAW_TYPE, 10 + number, raw, number))
    compressor.put(BagMessage('/depth', RAW_TYPE, 1, raw, 1))
    thread = threading.Thread(target=compressor.run)
    thread.start()
    compressor.close()
    thread.join(30)
    assert [(m.topic, m.stamp_ns, m.sent_ns) for m in found] == [
        ('/cam/compressed', 10, 0),
        ('/cam/compressed', 11, 1),
    ]
    assert dict(compressor.dropped) == {'/cam': 1, '/depth': 1}


ROBOT, OTHER = '/arm/edge_controller/state', '/lift/edge_controller/state'


class Clock:
    """Polls each second, as the recorder does."""

    def __init__(self) -> None:
        self.silence, self.now_s = Silence(), 0.0
        self.running = {ROBOT, OTHER}

    def pass_s(self, seconds: float, heard: tuple[str, ...] = ()) -> list[str]:
        """Return what is logged meanwhile."""
        logged = []
        for _ in range(round(seconds)):
            self.now_s += 1.0
            logged += [text for name in heard if (text := self.silence.on_state(name, self.now_s))]
            logged += self.silence.poll(self.now_s, self.running.__contains__)
        return logged


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    assert clock.pass_s(2, (ROBOT, OTHER)) == []
    return clock


def test_a_robot_that_is_heard_or_was_never_heard_is_not_silent(clock):
    clock.running.add('/never/edge_controller/state')
    assert clock.pass_s(10 * SILENT_S, (ROBOT, OTHER)) == []
    assert clock.silence.unheard_s(clock.now_s) == {}


def test_a_silent_robot_is_logged_once_and_again_when_it_is_heard(clock):
    # quiet since the first poll without a state
    assert clock.pass_s(SILENT_S, (OTHER,)) == []
    (text,) = clock.pass_s(3 * SILENT_S, (OTHER,))
    assert ROBOT in text and 'is not recorded' in text
    assert clock.silence.unheard_s(clock.now_s) == {ROBOT: 4 * SILENT_S - 1}
    (text,) = clock.pass_s(3, (ROBOT, OTHER))
    assert f'heard again after {4 * SILENT_S:.0f} s' in text
    assert clock.silence.unheard_s(clock.now_s + 99) == {ROBOT: 4 * SILENT_S}


@pytest.mark.parametrize('heard, runs, silent', list(itertools.product((False, True), repeat=3)))
def test_each_combination_of_what_is_known(clock, heard: bool, runs: bool, silent: bool):
    if silent:
        assert len(clock.pass_s(SILENT_S + 1)) == 2
    clock.running = {ROBOT, OTHER} if runs else set()
    logged = clock.pass_s(SILENT_S + 1, (ROBOT, OTHER) if heard else ())
    again = [text for text in logged if 'heard again' in text]
    fell = [text for text in logged if 'is not recorded' in text]
    assert len(again) == (2 if heard and silent else 0)
    assert len(fell) == (2 if runs and not heard and not silent else 0)
    assert bool(clock.silence.unheard_s(clock.now_s)) == (silent or bool(fell))


def test_a_robot_that_ended_counts_no_longer(clock):
    assert len(clock.pass_s(SILENT_S + 1)) == 2
    clock.running.clear()
    clock.pass_s(1)
    counted = clock.silence.unheard_s(clock.now_s)
    assert clock.pass_s(100) == []
    assert clock.silence.unheard_s(clock.now_s) == counted


def test_a_robot_that_starts_again_has_time_for_its_first_state(clock):
    clock.running.clear()
    assert clock.pass_s(100) == []
    clock.running.add(ROBOT)
    assert clock.pass_s(SILENT_S) == []
    assert clock.pass_s(100, (ROBOT,)) == []
    assert clock.silence.unheard_s(clock.now_s) == {}


def test_a_recorder_that_was_stopped_itself_counts_nothing_of_that_time(clock):
    clock.pass_s(SILENT_S)
    clock.now_s += 10 * SILENT_S
    assert clock.pass_s(SILENT_S) == []
    assert clock.pass_s(LATE_S, (ROBOT, OTHER)) == []
    assert clock.silence.unheard_s(clock.now_s) == {}
