# SPDX-License-Identifier: Apache-2.0
"""The robot's file: what is in it, and what follows from what is left out."""

from __future__ import annotations

import copy
from math import inf
import os
from pathlib import Path

import numpy as np
import pytest
from support.edge.robot_rig import ARM, BASE, changed, PAN_PATH, REMOVED, ROBOTS, SIM_ARM
from support.refusals import refused

from lerobot_serve.cage.description import ActionLimit, Interlock, Motion
from lerobot_serve.edge.robot.description import (
    CommandOutput,
    measured_values,
    measuring_indices,
    RobotDescription,
    StateSource,
)
from lerobot_serve.edge.robot.file import load, load_urdf, parse
from lerobot_serve.edge.robot.file_format import (
    Deadman,
    InterventionInput,
    JOY,
    JoyAxis,
    ROBOT_BYTES_LIMIT,
    RobotFileError,
    URDF_BYTES_LIMIT,
)

SO101_JOINTS = (
    'shoulder_pan',
    'shoulder_lift',
    'elbow_flex',
    'wrist_flex',
    'wrist_roll',
    'gripper',
)


def test_the_simulated_arm_loads():
    robot = load(SIM_ARM)
    assert (robot.name, robot.fps) == ('sim_arm', 30.0)
    assert robot.command == CommandOutput('trajectory_msgs/JointTrajectory', 'joint_trajectory')
    assert robot.action_names == robot.state_names == robot.own_state_names
    assert robot.action_names[0] == 'shoulder_pan.pos'
    assert robot.camera_names == ('observation.images.front', 'observation.images.wrist')
    assert robot.actions[0] == ActionLimit(
        'shoulder_pan.pos', 'shoulder_pan', Motion.POSITION, -1.9, 1.9, 0.15, 4.5
    )
    assert robot.safe_pose == (0.0, 0.0, 1.2, 0.0, 0.0, 0.0)


@pytest.mark.parametrize('file', sorted(ROBOTS.glob('*.yaml')), ids=lambda file: file.stem)
def test_every_robot_that_comes_with_the_package_loads(file):
    robot = load(file)
    assert robot.name == file.stem
    assert None not in measuring_indices(robot)
    assert all(0 < action.max_step < action.high - action.low for action in robot.actions)


def test_the_robots_are_those_of_lerobot():
    names = tuple(f'{joint}.pos' for joint in SO101_JOINTS)
    assert load(ROBOTS / 'so100.yaml').action_names == names
    assert load(ROBOTS / 'so101.yaml').state_names == names
    both = load(ROBOTS / 'bimanual_14.yaml')
    assert len(both.actions) == len(both.state_names) == len(both.safe_pose) == 14
    assert both.state_names == both.action_names
    assert both.action_names[6:8] == ('left_gripper', 'right_waist')
    base = load(ROBOTS / 'diff_drive.yaml')
    assert {action.motion for action in base.actions} == {Motion.VELOCITY}
    assert base.interlocks == (
        Interlock('obstacle', 'front_distance', 0.35, None, {'linear.x': 0.0}),
    )


@pytest.mark.parametrize(
    ('source', 'expected'),
    [
        (
            {'joints': ['a', 'b'], 'field': 'velocity'},
            (('a', 'b'), 'velocity', ('a.vel', 'b.vel')),
        ),
        ({'joints': ['a'], 'field': 'effort'}, (('a',), 'effort', ('a.eff',))),
        ({'joints': ['a'], 'names': ['left_a']}, (('a',), 'position', ('left_a',))),
        (
            {'type': 'sensor_msgs/msg/JointState', 'joints': ['a']},
            (('a',), 'position', ('a.pos',)),
        ),
        (
            {'type': 'nav_msgs/Odometry', 'fields': ['pose.yaw', 'linear.x']},
            (('pose.yaw', 'linear.x'), '', ('pose.yaw', 'linear.x')),
        ),
        (
            {'type': 'nav_msgs/msg/Odometry', 'fields': ['linear.x'], 'names': ['x.vel']},
            (('linear.x',), '', ('x.vel',)),
        ),
        (
            {'type': 'std_msgs/Float64MultiArray', 'names': ['force', 'range']},
            (('force', 'range'), '', ('force', 'range')),
        ),
    ],
)
def test_a_state_has_the_names_given_or_those_of_its_values(source, expected):
    states = [*ARM['state'], {'topic': 'more', 'max_age_s': 1, **source}]
    robot = parse(changed('state', states), 'f')
    more = robot.state[-1]
    assert (more.fields, more.field, more.names) == expected
    assert robot.state_names == (*robot.state[0].names, *more.names)


def test_one_topic_may_give_two_fields():
    states = [*ARM['state'], {**ARM['state'][0], 'field': 'velocity'}]
    robot = parse(changed('state', states), 'f')
    assert len(robot.state_names) == 12
    assert measuring_indices(robot) == (0, 1, 2, 3, 4, 5)


def test_a_safe_pose_has_the_order_of_the_actions():
    pose = {name: i / 10 for i, name in enumerate(ARM['actions'])}
    robot = parse(changed('safe_pose', dict(reversed(pose.items()))), 'f')
    assert robot.safe_pose == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def test_what_a_policy_calls_otherwise_is_renamed():
    renames = {'observation.images.front': 'observation.images.camera1', 'gripper.pos': 'jaw'}
    robot = parse(changed('rename_map', renames), 'f')
    assert robot.camera_names == ('observation.images.camera1', 'observation.images.wrist')
    assert robot.state_names[-1] == robot.action_names[-1] == 'jaw'
    assert robot.own_state_names[-1] == robot.actions[-1].name == 'gripper.pos'
    assert robot.cameras[0].name == 'observation.images.front'


def test_names_may_be_swapped():
    swapped = {
        'observation.images.front': 'observation.images.wrist',
        'observation.images.wrist': 'observation.images.front',
    }
    robot = parse(changed('rename_map', swapped), 'f')
    assert robot.camera_names == ('observation.images.wrist', 'observation.images.front')


@pytest.mark.parametrize(
    ('given_limits', 'expected'),
    [
        ({'max_step': 0.1}, (0.1, 3.0, inf, inf)),
        ({'max_velocity': 6}, (0.2, 6.0, inf, inf)),
        ({'max_velocity': 6, 'max_step': 0.1}, (0.1, 6.0, inf, inf)),
        ({'max_step': 0.1, 'max_acceleration': 9, 'max_lead': 0.5}, (0.1, 3.0, 9.0, 0.5)),
    ],
)
def test_a_step_and_a_velocity_follow_from_each_other(given_limits, expected):
    limits = {'joint': 'shoulder_pan', 'min': -1, 'max': 1, **given_limits}
    pan = parse(changed(PAN_PATH, limits), 'f').actions[0]
    assert (pan.max_step, pan.max_velocity, pan.max_acceleration, pan.max_lead) == expected


@pytest.mark.parametrize(
    ('given_limits', 'expected'),
    [
        ({'max_step': 0.1}, (0.1, 2.0)),
        ({'max_acceleration': 4}, (0.2, 4.0)),
        ({'max_acceleration': 4, 'max_step': 0.1}, (0.1, 4.0)),
    ],
)
def test_of_a_velocity_a_step_and_an_acceleration_do(given_limits, expected):
    limits = {'joint': 'linear.x', 'motion': 'velocity', 'min': -1, 'max': 1, **given_limits}
    forwards = parse(changed('actions/linear.x', limits, BASE), 'f').actions[0]
    assert (forwards.max_step, forwards.max_acceleration) == expected
    assert (forwards.max_velocity, forwards.max_lead) == (inf, inf)


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('', 'must be a group of name, fps'),
        ('- a\n- b', "got ['a', 'b']"),
        ('name: [a, b', 'not YAML (line 1, column 12: expected'),
        ('fps: 30\nname: {a\n', 'not YAML (line 3, column 1: '),
        ('fps: 30\nfps: 60\n', "not YAML (line 2, column 1: duplicate 'fps')"),
        ('a: {b: 1, c: 2, b: 3}', "line 1, column 17: duplicate 'b'"),
        ('a: !!python/object:os.system {}', 'not YAML (line 1, column 4: the tag'),
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
    with pytest.raises(RobotFileError) as refusal:
        load(file)
    assert str(refusal.value).startswith(f'{file}: ')
    assert words in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize('text', ['1e-3', '1E-3', '+1.e-3', '.1e-2', '1.0e-3', '0.001'])
def test_a_number_may_have_an_exponent(tmp_path, text):
    file = tmp_path / 'robot.yaml'
    file.write_text(SIM_ARM.read_text().replace('max_step: 0.15', f'max_step: {text}', 1))
    assert load(file).actions[0].max_step == 0.001


def test_a_name_that_looks_like_a_number_stays_a_name_in_quotes(tmp_path):
    file = tmp_path / 'robot.yaml'
    file.write_text(SIM_ARM.read_text().replace('name: sim_arm', 'name: "1e3"', 1))
    assert load(file).name == '1e3'


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(RobotFileError, match=r'cannot be read \(No such file'):
        load(tmp_path / 'nothing.yaml')
    with pytest.raises(RobotFileError, match='not a regular file'):
        load(tmp_path)


# robot files and URDFs that are not files, or far too large, and what a mistake shows of them


@pytest.mark.parametrize('key', ['urdf', 'robot'])
def test_a_pipe_or_a_device_is_refused_at_once(tmp_path, key):
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    for path in (pipe, Path('/dev/zero')):
        with pytest.raises(RobotFileError, match='not a regular file'):
            load(path) if key == 'robot' else load_urdf(path)


def test_a_file_without_an_end_that_is_sensible_is_not_read(tmp_path):
    large = tmp_path / 'large.urdf'
    with large.open('wb') as file:
        file.truncate(URDF_BYTES_LIMIT + 1)
    with pytest.raises(RobotFileError, match='larger than 16384 KiB'):
        load_urdf(large)
    os.truncate(large, ROBOT_BYTES_LIMIT + 1)
    with pytest.raises(RobotFileError, match='larger than 64 KiB'):
        load(large)


@pytest.mark.parametrize('text', ['[', '{a: ', '- ', '? '])
def test_a_file_that_is_nested_deeply_is_refused_where_it_begins_to_be(tmp_path, text):
    file = tmp_path / 'robot.yaml'
    file.write_text(text * 3000)
    with pytest.raises(RobotFileError, match=r'line 1, column \d\d: nested more than 16 deep'):
        load(file)


def test_a_step_is_at_most_the_range():
    content = copy.deepcopy(ARM)
    action = content['actions']['shoulder_pan.pos']
    span = action['max'] - action['min']
    action['max_step'] = span
    assert parse(content, 'robot.yaml').actions[0].max_step == span
    action['max_step'] = 1e6
    with pytest.raises(
        RobotFileError, match=r'max_step must be in .* from min to max, got 1000000'
    ):
        parse(content, 'robot.yaml')


def test_an_interlock_may_be_immediate():
    content = copy.deepcopy(ARM)
    lock = {'state': 'shoulder_pan.pos', 'below': -1.0, 'then': {'shoulder_pan.pos': 0.0}}
    content['actions']['shoulder_pan.pos']['max_acceleration'] = 9.0
    for given, immediate in (({}, False), ({'immediate': True}, True)):
        content['interlocks'] = {'low': lock | given}
        assert parse(content, 'robot.yaml').interlocks[0].immediate is immediate
    content['interlocks'] = {'low': lock | {'immediate': 'yes'}}
    with pytest.raises(RobotFileError, match="immediate must be true or false, got 'yes'"):
        parse(content, 'robot.yaml')
    content['interlocks'] = {'low': lock | {'immediate': True}}
    del content['actions']['shoulder_pan.pos']['max_acceleration']
    with pytest.raises(RobotFileError, match='immediate changes nothing for shoulder_pan'):
        parse(content, 'robot.yaml')


# which value of the state tells where an action's joint is


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
        # a velocity is not a position
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


# the device of a person in a robot's file: what is taken, and each mistake in one line


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
        '/leader/joints', 'trajectory_msgs/JointTrajectory', 0.5, Deadman(4, 'joy')
    )


def test_a_joystick_has_axes_and_its_own_deadman():
    device = parsed(JOYSTICK | {'deadman': {'button': 1}}).intervention
    assert device == InterventionInput('joy', JOY, 0.2, Deadman(1), {PAN: JoyAxis(0, 0.5)})
    assert device.deadman_topic == 'joy'


MISTAKES = [
    ('leader',),
    ({},),
    ({'topic': 'a b'},),
    ({'topic': 'a', 'speed': 1},),
    ({'topic': 'a', 'type': 'sensor_msgs/Imu'},),
    ({'topic': 'a', 'timeout_s': 0},),
    ({'topic': 'a', 'timeout_s': 60},),
    ({'topic': 'a', 'axes': AXES},),
    ({'topic': 'a', 'deadman': 4},),
    ({'topic': 'a', 'deadman': {'button': 4}},),
    ({'topic': 'a', 'deadman': {'topic': 'joy'}},),
    ({'topic': 'a', 'deadman': {'topic': 'joy', 'button': -1}},),
    ({'topic': 'a', 'deadman': {'topic': 'joy', 'button': 1.5}},),
    ({'topic': 'a', 'deadman': {'topic': 'a', 'button': 1}},),
    ({'topic': 'joint_trajectory'},),
    ({'topic': 'joint_states'},),
    ({'topic': 'a', 'deadman': {'topic': 'camera/front/image_raw', 'button': 0}},),
    ({'topic': 'a', 'type': 'geometry_msgs/Twist'},),
    ({'topic': 'joy', 'type': JOY},),
    (JOYSTICK | {'axes': {}},),
    (JOYSTICK | {'axes': {'tail': {'axis': 0, 'scale': 1}}},),
    (JOYSTICK | {'axes': {PAN: {'axis': 0, 'scale': 0}}},),
    (JOYSTICK | {'axes': {PAN: {'axis': 0}}},),
]


@pytest.mark.golden
def test_a_mistake_is_one_line_with_its_place(golden):
    golden.holds('refusals/robot_person.txt', refused(MISTAKES, parsed, RobotFileError))


def test_a_base_takes_velocities():
    assert parsed({'topic': 'a', 'type': 'geometry_msgs/TwistStamped'}, BASE).intervention
    with pytest.raises(RobotFileError, match='takes positions only'):
        parsed({'topic': 'a', 'type': 'trajectory_msgs/JointTrajectory'}, BASE)
