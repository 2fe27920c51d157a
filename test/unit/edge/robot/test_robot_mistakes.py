# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a robot's file: each is one line with its place, what was given and allowed."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.edge.robot_rig import ARM, BASE, changed, FRONT_PATH, PAN_PATH, REMOVED, SIM_ARM
from support.refusals import refused

from lerobot_serve.cage.description import Motion
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.file import load, parse
from lerobot_serve.edge.robot.file_format import RobotFileError

ODOMETRY = {'topic': 't', 'type': 'nav_msgs/Odometry', 'max_age_s': 1}
# what each key may hold is in test/golden/refusals/robot_file.txt
MISTAKES = [
    ('name', 'two\nlines'),
    ('name', 'ü' * 65),
    ('fps', 10**400),
    # state
    ('state/0/topic', 'joint states'),
    ('state/0/type', 'sensor_msgs/Imu'),
    ('state/0/type', 'nav_msgs/Odometry'),
    ('state/0/fields', ['a']),
    ('state/0/joints', ['a', 7]),
    ('state/0/field', 'speed'),
    ('state/0/field', ['position']),
    ('state/0/names', ['a']),
    ('state/0/names', [*'abcdea']),
    ('state', [ARM['state'][0], ARM['state'][0]]),
    ('state', [*ARM['state'], ODOMETRY | {'fields': ['pose.w']}]),
    ('state/0/joints', ['shoulder_pan']),
    (f'{PAN_PATH}/joint', 'elbow_flex'),
    (f'{PAN_PATH}/joint', 'nope'),
    ('state/0/names', [f'{joint}.pos' for joint in reversed(ARM['state'][0]['joints'])]),
    ('state/0/field', 'velocity'),
    # cameras
    (f'{FRONT_PATH}/topic', '/a//b'),
    (f'{FRONT_PATH}/type', 'jpeg'),
    (f'{FRONT_PATH}/topic', 'joint_states'),
    # actions
    ('actions', {7: {}}),
    (f'{PAN_PATH}/motion', 'torque'),
    (f'{PAN_PATH}/min', 1.9),
    (f'{PAN_PATH}/max_step', 0),
    (f'{PAN_PATH}/max_velocity', 0),
    (f'{PAN_PATH}/max_acceleration', inf),
    (f'{PAN_PATH}/limits', 'urdf'),
    (f'{PAN_PATH}/limits', 'none'),
    ('limits', 'urdf'),
    # command
    ('command/topic', 'joint_states'),
    ('command/type', 'geometry_msgs/Twist'),
    ('command/frame_id', 'base'),
    ('command/time_from_start_s', -1),
    # interlocks
    (
        'interlocks/low',
        {'state': 'gripper.pos', 'below': 1, 'above': 1, 'then': {'gripper.pos': 0}},
    ),
    # names
    ('rename_map', 'front'),
    ('rename_map', {'jaw': 'x'}),
    ('rename_map', {'gripper.pos': ''}),
    ('rename_map', {'gripper.pos': 'elbow_flex.pos'}),
    ('rename_map', {'observation.images.front': 'observation.images.wrist'}),
]
MISTAKES_OF_A_BASE = [
    ('actions/linear.x/min', 0.1),
    ('actions/linear.x/max_lead', 1),
    ('actions/linear.x/max_acceleration', REMOVED),
    ('actions/linear.x/joint', 'wheel'),
    ('command', {'topic': 'c', 'type': 'trajectory_msgs/JointTrajectory'}),
    ('safe_pose', {'linear.x': 0.1, 'angular.z': 0}),
]


@pytest.mark.golden
def test_a_mistake_is_one_line_with_its_place(golden):
    def said(content: dict, mistakes: list[tuple[str, object]]) -> str:
        return refused(
            mistakes, lambda path, value: parse(changed(path, value, content), 'f'), RobotFileError
        )

    found = said(ARM, MISTAKES) + said(BASE, MISTAKES_OF_A_BASE)
    golden.holds('refusals/robot_mistakes.txt', found)


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
    with pytest.raises(RobotFileError) as refusal:
        load(file)
    assert f'{text} is ambiguous (YAML 1.1 reads {read_as}); write' in str(refusal.value)
    assert f'{file}: not YAML (line ' in str(refusal.value)


@pytest.mark.parametrize('text', ['30', '30.', '30.0', '3e1', '3.0e+1', '+30', '0.3e2'])
def test_a_plain_decimal_is_read_as_it_is_written(tmp_path, text):
    file = tmp_path / 'robot.yaml'
    file.write_text(SIM_ARM.read_text().replace('fps: 30', f'fps: {text}'))
    assert load(file).fps == 30
