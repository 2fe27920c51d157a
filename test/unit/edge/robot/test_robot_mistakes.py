# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a robot's file: each is one line with its place, what was given and allowed."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.edge.robot_rig import ARM, BASE, changed, FRONT_PATH, PAN_PATH, REMOVED, SIM_ARM

from lerobot_serve.cage.description import Motion
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.file import load, parse
from lerobot_serve.edge.robot.file_format import RobotFileError

PAN = 'f: actions: shoulder_pan.pos'
FRONT = 'f: cameras: observation.images.front'
ODOMETRY = {'topic': 't', 'type': 'nav_msgs/Odometry', 'max_age_s': 1}
# what each key may hold is in test/golden/refusals/robot_file.txt
MISTAKES = [
    ('speed', 1, "f: unknown field 'speed'; allowed are name, fps, state, cameras, actions, comm"),
    ('name', 'two\nlines', r"f: name must be a text of at most 128 bytes, got 'two\nlines'"),
    ('name', 'ü' * 65, 'f: name must be a text of at most 128 bytes'),
    ('fps', 10**400, 'f: fps must be a number from 0.1 to 1000, got 1000000000000000000000000000'),
    # state
    ('state/0/topic', 'joint states', 'f: state[0]: topic must be the name of a topic like joint'),
    ('state/0/type', 'sensor_msgs/Imu', 'f: state[0]: type must be one of sensor_msgs/JointState'),
    ('state/0/type', 7, 'f: state[0]: type must be one of sensor_msgs/JointState, nav_msgs/Odome'),
    ('state/0/type', 'nav_msgs/Odometry', "f: state[0]: unknown field 'joints'; allowed are topi"),
    ('state/0/fields', ['a'], "f: state[0]: unknown field 'fields'; did you mean field?"),
    ('state/0/joints', ['a', 7], 'f: state[0]: joints[1] must be a text of at most 128 bytes, go'),
    ('state/0/joints', ['a', 'b', 'a'], 'f: state[0]: joints must be a list of different names, '),
    ('state/0/field', 'speed', "f: state[0]: field must be 'position' or 'velocity' or 'effort',"),
    ('state/0/field', ['position'], "f: state[0]: field must be 'position' or 'velocity' or 'eff"),
    ('state/0/names', ['a'], 'f: state[0]: names must be 6, one for each value, got 1'),
    ('state/0/names', [*'abcdea'], "f: state[0]: names must be a list of different names, got ['"),
    ('state', [ARM['state'][0], ARM['state'][0]], "f: state: the name: duplicate 'shoulder_pan.p"),
    (
        'state',
        [*ARM['state'], ODOMETRY | {'fields': ['pose.w']}],
        'f: state[1]: fields[0] must be one of linear.x, linear.y, linear.z, angular.x',
    ),
    ('state/0/joints', ['shoulder_pan'], 'f: actions: shoulder_lift.pos: no state value measures'),
    (
        f'{PAN_PATH}/joint',
        'elbow_flex',
        "f: actions: joint: duplicate 'elbow_flex'",
    ),
    (
        f'{PAN_PATH}/joint',
        'nope',
        f'{PAN}: joint is nope, but the state shoulder_pan.pos that measures it is the joint '
        'shoulder_pan of joint_states; both must be one joint',
    ),
    (
        'state/0/names',
        [f'{joint}.pos' for joint in reversed(ARM['state'][0]['joints'])],
        f'{PAN}: joint is shoulder_pan, but the state shoulder_pan.pos that measures it is the '
        'joint gripper of joint_states',
    ),
    ('state/0/field', 'velocity', f'{PAN}: no state value measures shoulder_pan'),
    # cameras
    (f'{FRONT_PATH}/topic', '/a//b', f'{FRONT}: topic must be the name of a topic'),
    (f'{FRONT_PATH}/type', 'jpeg', f'{FRONT}: type must be one of sensor_msgs/Image, sensor_msgs'),
    (f'{FRONT_PATH}/topic', 'joint_states', 'f: topic joint_states has two types: sensor_msgs/Jo'),
    # actions
    ('actions', {7: {}}, 'f: actions: the name 7 must be a text of at most 128 bytes'),
    (f'{PAN_PATH}/speed', 1, f"{PAN}: unknown field 'speed'; allowed are joint, limits, min, m"),
    (f'{PAN_PATH}/joint', 'elbow_flex', "f: actions: joint: duplicate 'elbow_flex'"),
    (f'{PAN_PATH}/joint', 7, f'{PAN}: joint must be a text'),
    (f'{PAN_PATH}/motion', 'torque', f'{PAN}: motion must be one of position, velocity, got'),
    (f'{PAN_PATH}/min', REMOVED, f'{PAN}: min is missing'),
    (f'{PAN_PATH}/min', 1.9, f'{PAN}: min must be below max, got 1.9 and 1.9'),
    (f'{PAN_PATH}/min', 2, f'{PAN}: min must be below max, got 2 and 1.9'),
    (f'{PAN_PATH}/max', float('nan'), f'{PAN}: max must be a number from -1e+06 to 1e+06, got na'),
    (f'{PAN_PATH}/max', 1e7, f'{PAN}: max must be a number from -1e+06 to 1e+06, got 10000000.'),
    (f'{PAN_PATH}/max_step', 0, f'{PAN}: max_step must be in [1e-06, 3.8], from min to max, got '),
    (f'{PAN_PATH}/max_step', -0.1, f'{PAN}: max_step must be in [1e-06, 3.8], from min to max, g'),
    (f'{PAN_PATH}/max_step', REMOVED, f'{PAN}: max_step or max_velocity is missing'),
    (f'{PAN_PATH}/max_velocity', 0, f'{PAN}: max_velocity must be a number from 1e-06 to 1e+06, '),
    (f'{PAN_PATH}/max_acceleration', inf, f'{PAN}: max_acceleration must be a number from 1e-06 '),
    (f'{PAN_PATH}/max_lead', -1, f'{PAN}: max_lead must be a number from 1e-06 to 1e+06, got -1'),
    (f'{PAN_PATH}/limits', 'urdf', f'{PAN}: limits is urdf, but the file names no'),
    (f'{PAN_PATH}/limits', 'none', f"{PAN}: limits must be 'file' or 'urdf', got 'none'"),
    ('limits', 'urdf', f'{PAN}: limits is urdf, but the file names no urdf'),
    # command
    ('command/topic', 'joint_states', 'f: command: command topic joint_states is also an input'),
    ('command/type', 'Twist', 'f: command: type must be one of trajectory_msgs/JointTrajectory, '),
    ('command/type', 'geometry_msgs/Twist', 'f: command: geometry_msgs/Twist takes velocities o'),
    ('command/frame_id', 'base', 'f: command: frame_id is of the type geometry_msgs/TwistStamped'),
    ('command/time_from_start_s', -1, 'f: command: time_from_start_s must be a number from 0 to '),
    # interlocks
    ('interlocks/low', {'then': {}}, 'f: interlocks: low: state is missing; it must be a text of'),
    (
        'interlocks/low',
        {'state': 'height', 'below': 1, 'then': {'gripper.pos': 0}},
        "f: interlocks: low: no state 'height'; there are shoulder_pan.pos, shoulder_lift.pos",
    ),
    (
        'interlocks/low',
        {'state': 'gripper.pos', 'below': 1, 'then': {'jaw': 0}},
        "f: interlocks: low: then: no action 'jaw'; there are shoulder_pan.pos",
    ),
    (
        'interlocks/low',
        {'state': 'gripper.pos', 'below': 1, 'then': {'gripper.pos': 9}},
        'f: interlocks: low: then: gripper.pos must be in its limits [-0.2, 1.8], got 9',
    ),
    (
        'interlocks/low',
        {'state': 'gripper.pos', 'below': 1, 'then': {}},
        'f: interlocks: low: then must be a mapping of actions to values, got {}',
    ),
    (
        'interlocks/low',
        {'state': 'gripper.pos', 'below': 1, 'then': {'gripper.pos': None}},
        'f: interlocks: low: then: gripper.pos must be a number from -1e+06 to 1e+06, got None',
    ),
    (
        'interlocks/low',
        {'state': 'gripper.pos', 'below': 1, 'above': 1, 'then': {'gripper.pos': 0}},
        'f: interlocks: low: below must be less than above, got 1',
    ),
    # safe pose
    ('safe_pose/gripper.pos', REMOVED, 'f: safe_pose: gripper.pos is missing'),
    ('safe_pose/jaw', 0, "f: safe_pose: no action 'jaw'; there are shoulder_pan.pos, should"),
    ('safe_pose/gripper.pos', 2, 'f: safe_pose: gripper.pos must be in its limits [-0.2, 1.8]'),
    ('safe_pose/gripper.pos', float('nan'), 'f: safe_pose: gripper.pos must be a number from -1e'),
    # names
    ('rename_map', 'front', 'f: rename_map must be a mapping from names to a text of at most 128'),
    ('rename_map', {'jaw': 'x'}, "f: rename_map: no state, camera or action 'jaw'; there are"),
    ('rename_map', {'gripper.pos': ''}, 'f: rename_map: gripper.pos must be a text of at most'),
    (
        'rename_map',
        {'gripper.pos': 'elbow_flex.pos'},
        "f: rename_map: after renaming: duplicate 'elbow_flex.pos'",
    ),
    (
        'rename_map',
        {'observation.images.front': 'observation.images.wrist'},
        "f: rename_map: after renaming: duplicate 'observation.images.wrist'",
    ),
]
FORWARDS = 'f: actions: linear.x'
MISTAKES_OF_A_BASE = [
    ('actions/linear.x/min', 0.1, f'{FORWARDS}: min to max must include 0, got 0.1 to 0.4'),
    ('actions/linear.x/max_lead', 1, f"{FORWARDS}: unknown field 'max_lead'; did you mean max_st"),
    ('actions/linear.x/max_acceleration', REMOVED, f'{FORWARDS}: max_step or max_acceleration is'),
    ('actions/linear.x/joint', 'wheel', "f: command: geometry_msgs/TwistStamped has no 'wheel'; "),
    (
        'command',
        {'topic': 'c', 'type': 'trajectory_msgs/JointTrajectory'},
        'f: command: trajectory_msgs/JointTrajectory takes positions only',
    ),
    (
        'safe_pose',
        {'linear.x': 0.1, 'angular.z': 0},
        'f: safe_pose: linear.x is a velocity and must be 0 in a pose, got 0.1',
    ),
]


@pytest.mark.parametrize(
    ('content', 'path', 'value', 'text'),
    [
        *((ARM, *mistake) for mistake in MISTAKES),
        *((BASE, *mistake) for mistake in MISTAKES_OF_A_BASE),
    ],
)
def test_a_mistake_is_one_line_with_its_place(content, path, value, text):
    with pytest.raises(RobotFileError) as refused:
        parse(changed(path, value, content), 'f')
    assert str(refused.value).startswith(text)
    assert len(str(refused.value).splitlines()) == 1


def test_a_joint_state_is_positions_or_velocities():
    content = changed('command/type', 'sensor_msgs/JointState')
    parse(content, 'f')
    gripper = {**content['actions']['gripper.pos'], 'motion': 'velocity'}
    with pytest.raises(RobotFileError, match='positions or velocities, not both'):
        parse(changed('actions/gripper.pos', gripper, content), 'f')


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
places_of_an_arm = [
    *ARM,
    'limits',
    'rename_map',
    'urdf',
    'interlocks',
    *(f'state/0/{key}' for key in (*ARM['state'][0], 'type', 'field', 'names', 'fields')),
    *(f'{FRONT_PATH}/{key}' for key in ('topic', 'type', 'max_age_s')),
    *(f'{PAN_PATH}/{key}' for key in ('joint', 'motion', 'limits', 'min', 'max', 'max_step')),
    *(f'{PAN_PATH}/{key}' for key in ('max_velocity', 'max_acceleration', 'max_lead')),
    *(f'command/{key}' for key in ('topic', 'type', 'time_from_start_s')),
    'rename_map/gripper.pos',
    'safe_pose/gripper.pos',
]
places_of_a_base = [
    *BASE,
    *(f'state/{i}/{key}' for i in (0, 1) for key in BASE['state'][i]),
    *(f'actions/linear.x/{key}' for key in BASE['actions']['linear.x']),
    *(f'interlocks/obstacle/{key}' for key in ('state', 'below', 'above', 'then')),
    'interlocks/obstacle/then/linear.x',
]
places = st.sampled_from(
    [(ARM, place) for place in places_of_an_arm] + [(BASE, place) for place in places_of_a_base]
)


@given(places, anything)
def test_whatever_stands_anywhere_it_is_a_robot_or_one_line(place, value):
    content, path = place
    try:
        robot = parse(changed(path, value, content), 'f')
    except RobotFileError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert isinstance(robot, RobotDescription)
    for limit in robot.actions:
        assert limit.low < limit.high
        assert limit.max_step > 0
        assert limit.motion is Motion.POSITION or limit.low <= 0 <= limit.high
    for forced in (one.then for one in robot.interlocks):
        assert set(forced) <= {limit.name for limit in robot.actions}


def test_two_actions_with_each_others_joint_are_refused():
    content = changed(f'{PAN_PATH}/joint', 'elbow_flex')
    content['actions']['elbow_flex.pos']['joint'] = 'shoulder_pan'
    with pytest.raises(RobotFileError, match='joint is elbow_flex, but the state shoulder_pan'):
        parse(content, 'f')


@pytest.mark.parametrize(
    ('text', 'read_as'),
    [
        ('030', '24'),
        ('1:30', '90'),
        ('1:30.5', '90.5'),
        ('0x1e', '30'),
        ('0b11', '3'),
        ('1_000', '1000'),
        ('-030', '-24'),
        ('030.5', '30.5'),
    ],
)
def test_a_number_that_yaml_reads_otherwise_is_refused(tmp_path, text, read_as):
    file = tmp_path / 'robot.yaml'
    file.write_text(SIM_ARM.read_text().replace('fps: 30', f'fps: {text}'))
    with pytest.raises(RobotFileError) as refused:
        load(file)
    assert f'{text} is ambiguous (YAML 1.1 reads {read_as}); write' in str(refused.value)
    assert f'{file}: not YAML (line ' in str(refused.value)


@pytest.mark.parametrize('text', ['30', '30.', '30.0', '3e1', '3.0e+1', '+30', '0.3e2'])
def test_a_plain_decimal_is_read_as_it_is_written(tmp_path, text):
    file = tmp_path / 'robot.yaml'
    file.write_text(SIM_ARM.read_text().replace('fps: 30', f'fps: {text}'))
    assert load(file).fps == 30
