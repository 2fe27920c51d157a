"""The robot's file: each mistake is one line with its place, what was given and allowed."""

from __future__ import annotations

import copy
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import pytest
import yaml

from lerobot_serve.edge.robot import load, parse, Robot, RobotFileError

SIM_ARM = Path(__file__).resolve().parents[2] / 'config' / 'robots' / 'sim_arm.yaml'
CONTENT = yaml.safe_load(SIM_ARM.read_text())
PAN = 'f: actions: shoulder_pan.pos'
FRONT = 'f: cameras: observation.images.front'
REMOVED = object()


def changed(path: str, value: object) -> dict:
    """Return the simulated arm's content with one place changed."""
    content = copy.deepcopy(CONTENT)
    *tables, key = path.split('/')
    table = content
    for name in tables:
        table = table[name]
    if value is REMOVED:
        del table[key]
    else:
        table[key] = value
    return content


def test_the_simulated_arm_loads():
    robot = load(SIM_ARM)
    assert (robot.name, robot.fps, robot.command_topic) == ('sim_arm', 30.0, 'joint_trajectory')
    assert robot.action_names == robot.state_names
    assert robot.action_names[0] == 'shoulder_pan.pos'
    assert [camera.name for camera in robot.cameras] == [
        'observation.images.front',
        'observation.images.wrist',
    ]
    pan = robot.actions[0]
    assert (pan.joint, pan.low, pan.high, pan.max_step) == ('shoulder_pan', -1.9, 1.9, 0.15)


def test_a_robot_needs_no_camera():
    assert parse(changed('cameras', {}), 'f').cameras == ()


PAN_PATH = 'actions/shoulder_pan.pos'
FRONT_PATH = 'cameras/observation.images.front'
MISTAKES = [
    ('speed', 1, "f: unknown 'speed'; allowed are name, fps, state, cameras, actions, command"),
    ('name', REMOVED, 'f: name is missing'),
    ('name', '', 'f: name must be a text'),
    ('name', 'two\nlines', r"f: name must be a text of at most 128 bytes, got 'two\nlines'"),
    ('name', 'ü' * 65, 'f: name must be a text of at most 128 bytes'),
    ('fps', 'fast', "f: fps must be a number, got 'fast'"),
    ('fps', True, 'f: fps must be a number, got True'),
    ('fps', float('nan'), 'f: fps must be a number, got nan'),
    ('fps', 0, 'f: fps must be in [0.1, 1000], got 0'),
    ('fps', float('inf'), 'f: fps must be in [0.1, 1000], got inf'),
    ('fps', 10**400, 'f: fps must be in [0.1, 1000], got 1000'),
    ('state', None, 'f: state: expected topic, joints, max_age_s, got None'),
    ('state/topic', 'joint states', 'f: state: topic must be the name of a topic like joint_st'),
    ('state/joints', 'pan', "f: state: joints must be a list of names, got 'pan'"),
    ('state/joints', [], 'f: state: joints must be a list of names, got []'),
    ('state/joints', ['pan', 7], "f: state: joints must be a list of names, got ['pan', 7]"),
    ('state/joints', ['a', 'b', 'a'], "f: state: joints: 'a' is there twice"),
    ('state/max_age_s', 0, 'f: state: max_age_s must be in [0.001, 60], got 0'),
    ('cameras', ['front'], "f: cameras: expected names with their settings, got ['front']"),
    (FRONT_PATH, 'front/image_raw', f"{FRONT}: expected topic, max_age_s, got 'front/image_raw'"),
    (f'{FRONT_PATH}/topic', '/a//b', f'{FRONT}: topic must be the name of a topic'),
    (f'{FRONT_PATH}/max_age_s', REMOVED, f'{FRONT}: max_age_s is missing'),
    ('actions', {}, 'f: actions is empty; name what the robot can do'),
    ('actions', {7: {}}, 'f: actions: expected names with their settings, got {7: {}}'),
    (f'{PAN_PATH}/speed', 1, f"{PAN}: unknown 'speed'; allowed are joint, min, max, max_step"),
    (f'{PAN_PATH}/joint', 'elbow_flex', "f: actions: joint: 'elbow_flex' is there twice"),
    (f'{PAN_PATH}/joint', 7, f'{PAN}: joint must be a text'),
    (f'{PAN_PATH}/min', 1.9, f'{PAN}: min must be below max, got 1.9 and 1.9'),
    (f'{PAN_PATH}/min', 2, f'{PAN}: min must be below max, got 2 and 1.9'),
    (f'{PAN_PATH}/max', float('nan'), f'{PAN}: max must be a number, got nan'),
    (f'{PAN_PATH}/max', 1e7, f'{PAN}: max must be in [-1e+06, 1e+06], got 10000000.0'),
    (f'{PAN_PATH}/max_step', 0, f'{PAN}: max_step must be in [1e-06, 1e+06], got 0'),
    (f'{PAN_PATH}/max_step', -0.1, f'{PAN}: max_step must be in [1e-06, 1e+06], got -0.1'),
    (f'{PAN_PATH}/max_step', REMOVED, f'{PAN}: max_step is missing'),
    ('command', REMOVED, 'f: command is missing'),
    ('command/topic', '', 'f: command: topic must be a text'),
]


@pytest.mark.parametrize(('path', 'value', 'text'), MISTAKES)
def test_a_mistake_is_one_line_with_its_place(path, value, text):
    with pytest.raises(RobotFileError) as refused:
        parse(changed(path, value), 'f')
    assert str(refused.value).startswith(text)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('', 'expected name, fps'),
        ('- a\n- b', "got ['a', 'b']"),
        ('name: [a, b', 'not YAML (line 1, column 12: expected'),
        ('fps: 30\nname: {a\n', 'not YAML (line 3, column 1: '),
        ('fps: 30\nfps: 60\n', "not YAML (line 2, column 1: 'fps' is there twice)"),
        ('a: {b: 1, c: 2, b: 3}', "line 1, column 17: 'b' is there twice"),
        ('a: !!python/object:os.system {}', 'not YAML (line 1, column 4: could not determine'),
        ('fps: 2026-13-45', 'not YAML (month must be in 1..12'),
        ('fps: !!int ""', 'not YAML'),
        ('[' * 700, 'not YAML'),
        (b'name: \xff', 'not YAML'),
        ('name: "\x07"', 'not YAML'),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path, text, words):
    file = tmp_path / 'robot.yaml'
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RobotFileError) as refused:
        load(file)
    assert str(refused.value).startswith(f'{file}: ')
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize('text', ['1e-3', '1E-3', '+1.e-3', '.1e-2', '1.0e-3', '0.001'])
def test_a_number_may_have_an_exponent(tmp_path, text):
    file = tmp_path / 'robot.yaml'
    file.write_text(SIM_ARM.read_text().replace('max_step: 0.15', f'max_step: {text}', 1))
    assert load(file).actions[0].max_step == 0.001


def test_a_name_that_looks_like_a_number_stays_a_name_in_quotes(tmp_path):
    file = tmp_path / 'robot.yaml'
    file.write_text(SIM_ARM.read_text().replace('name: sim_arm', 'name: "1e3"', 1))
    assert load(file).name == '1e3'


def test_an_action_that_is_there_twice_is_refused(tmp_path):
    file = tmp_path / 'robot.yaml'
    line = '  shoulder_pan.pos: {joint: shoulder_pan, min: -9, max: 9, max_step: 9}\n'
    file.write_text(SIM_ARM.read_text().replace('  gripper.pos:', f'{line}  gripper.pos:'))
    with pytest.raises(RobotFileError, match=r"line \d+, column 3: 'shoulder_pan.pos' is there"):
        load(file)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(RobotFileError, match=r'cannot be read \(No such file'):
        load(tmp_path / 'nothing.yaml')
    with pytest.raises(RobotFileError, match=r'cannot be read \(Is a directory'):
        load(tmp_path)


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
top_level = st.sampled_from(sorted(CONTENT))
deeper = st.sampled_from(
    ['state/joints', 'state/topic', FRONT_PATH, f'{FRONT_PATH}/topic', PAN_PATH]
)
limits = st.sampled_from([f'{PAN_PATH}/min', f'{PAN_PATH}/max', f'{PAN_PATH}/max_step'])


@given(top_level | deeper | limits, anything)
def test_whatever_stands_anywhere_it_is_a_robot_or_one_line(path, value):
    try:
        robot = parse(changed(path, value), 'f')
    except RobotFileError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert isinstance(robot, Robot)
    for action in robot.actions:
        assert action.low < action.high
        assert action.max_step > 0
