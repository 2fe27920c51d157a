# SPDX-License-Identifier: Apache-2.0
"""Limits from a URDF, and mistakes in a robot's file: each is one line with its place."""

from __future__ import annotations

from math import inf
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.edge.robot_rig import ARM, BASE, changed, FRONT_PATH, PAN_PATH, REMOVED, SIM_ARM
from support.refusals import refused

from lerobot_serve.cage.description import Motion
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.file import JointLimit, load, parse, Urdf
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


BOUNDS = 'lower="-1.5" upper="1.25" effort="10" velocity="3"'


def urdf(*joints: str) -> str:
    return f'<?xml version="1.0"?>\n<robot name="arm">{"".join(joints)}</robot>'


def joint(name: str = 'pan', kind: str = 'revolute', bounds: str | None = BOUNDS) -> str:
    limit = '' if bounds is None else f'<limit {bounds}/>'
    return f'<joint name="{name}" type="{kind}"><parent link="a"/>{limit}</joint>'


@pytest.mark.parametrize(
    ('kind', 'bounds', 'expected'),
    [
        ('revolute', BOUNDS, JointLimit(-1.5, 1.25, 3.0)),
        ('prismatic', BOUNDS, JointLimit(-1.5, 1.25, 3.0)),
        # what is left out of a joint with ends is 0
        ('revolute', 'upper="1" velocity="3"', JointLimit(0.0, 1.0, 3.0)),
        ('revolute', 'lower="-1" upper="1"', JointLimit(-1.0, 1.0, None)),
        ('continuous', 'velocity="3"', JointLimit(None, None, 3.0)),
        # a wheel has no ends, whatever else is written there
        ('continuous', BOUNDS, JointLimit(None, None, 3.0)),
        ('continuous', None, JointLimit(None, None, None)),
        # how exporters say that there is no limit
        ('revolute', 'lower="-1e16" upper="INF" velocity="1e9"', JointLimit(None, None, None)),
    ],
)
def test_the_limits_of_a_joint(kind, bounds, expected):
    assert Urdf(urdf(joint(kind=kind, bounds=bounds)), 'arm').limit('pan', 'f') == expected


def test_only_the_robots_own_joints_count():
    elsewhere = '<transmission><joint name="pan"/></transmission><ros2_control><joint name="pan"/>'
    text = urdf(joint(), elsewhere, '</ros2_control>')
    assert Urdf(text, 'arm').limit('pan', 'f') == JointLimit(-1.5, 1.25, 3.0)


UNUSABLE = [
    ('',),
    ('<robot>',),
    ('<robot>\x00</robot>',),
    ('<sdf/>',),
    (urdf(joint(), joint()),),
    ('<!DOCTYPE robot SYSTEM "/etc/passwd"><robot/>',),
    ('<!DOCTYPE r [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><robot name="&b;"/>',),
    ('<robot name="&a;"/>',),
    (urdf(joint('tilt')),),
    (urdf(),),
    (urdf(joint(kind='fixed')),),
    (urdf('<joint name="pan"/>'),),
    (urdf(joint(bounds=None)),),
    (urdf(joint(bounds='lower="${low}" velocity="1"')),),
    (urdf(joint(bounds='lower="nan" velocity="1"')),),
    (urdf(joint(bounds='velocity="0"')),),
]


@pytest.mark.golden
def test_what_cannot_be_used_is_one_line(golden):
    said = refused(UNUSABLE, lambda text: Urdf(text, 'arm').limit('pan', 'f'), RobotFileError)
    golden.holds('refusals/urdf.txt', said)


@given(st.text(max_size=40) | st.sampled_from([joint(), urdf(joint())]))
def test_whatever_the_text_it_is_a_urdf_or_one_line(text):
    try:
        Urdf(text, 'arm')
    except RobotFileError as error:
        assert len(str(error).splitlines()) == 1


# with a robot's file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = [limits['joint'] for limits in ARM['actions'].values()]
    (tmp_path / 'arm.urdf').write_text(urdf(*map(joint, names), joint('linear.x')))
    return tmp_path


def pan(folder: Path, **limits: object):
    content = changed(PAN_PATH, {'joint': 'shoulder_pan', 'limits': 'urdf', **limits})
    return parse(changed('urdf', 'arm.urdf', content), 'f', folder).actions[0]


def numbers(action) -> tuple[float, ...]:
    return action.low, action.high, action.max_step, action.max_velocity


@pytest.mark.parametrize(
    ('limits', 'expected'),
    [
        ({}, (-1.5, 1.25, 0.1, 3.0)),
        ({'min': -1, 'max': 1, 'max_velocity': 1.5}, (-1.0, 1.0, 0.05, 1.5)),
        ({'max_step': 0.01}, (-1.5, 1.25, 0.01, 3.0)),
    ],
)
def test_a_robots_file_may_narrow_what_its_urdf_allows(folder, limits, expected):
    assert numbers(pan(folder, **limits)) == expected


WIDER = [
    ({'min': -1.6},),
    ({'max': 1.3},),
    ({'max_velocity': 4},),
    ({'min': 1.25},),
    ({'joint': 'tilt'},),
]


@pytest.mark.golden
def test_and_never_widen_it(folder, golden):
    said = refused(WIDER, lambda limits: pan(folder, **limits), RobotFileError)
    golden.holds('refusals/robot_urdf.txt', said.replace(f'{folder}/', ''))


def test_the_whole_file_may_take_the_limits_of_its_urdf(folder):
    actions = {
        name: {'joint': limits['joint']} for name, limits in changed('x', 0)['actions'].items()
    }
    own = {'joint': 'gripper', 'limits': 'file', 'min': -2, 'max': 2, 'max_step': 1}
    content = changed('actions', {**actions, 'gripper.pos': own})
    content = changed('limits', 'urdf', changed('urdf', 'arm.urdf', content))
    content['safe_pose']['elbow_flex.pos'] = 1
    robot = parse(content, 'f', folder)
    assert {numbers(action) for action in robot.actions[:-1]} == {(-1.5, 1.25, 0.1, 3.0)}
    assert numbers(robot.actions[-1])[:2] == (-2.0, 2.0)


def test_what_a_urdf_does_not_limit_the_file_must(folder):
    (folder / 'arm.urdf').write_text(urdf(joint('shoulder_pan', 'continuous', None)))
    with pytest.raises(RobotFileError, match=r'shoulder_pan\.pos: min is missing'):
        pan(folder)
    with pytest.raises(RobotFileError, match='max_step or max_velocity is missing'):
        pan(folder, min=-1, max=1)
    assert numbers(pan(folder, min=-1, max=1, max_step=0.5)) == (-1.0, 1.0, 0.5, 15.0)


def test_of_a_velocity_the_urdf_limits_both_directions(folder):
    limits = {'joint': 'linear.x', 'motion': 'velocity', 'limits': 'urdf', 'max_acceleration': 2}
    content = changed('urdf', 'arm.urdf', changed('actions/linear.x', limits, BASE))
    action = parse(content, 'f', folder).actions[0]
    assert (action.motion, action.low, action.high) == (Motion.VELOCITY, -3.0, 3.0)
    assert (action.max_step, action.max_velocity) == (0.1, inf)


def test_a_urdf_lies_beside_the_robots_file(folder):
    (folder / 'robot.yaml').write_text(f'{changed("urdf", "arm.urdf")}')
    assert load(folder / 'robot.yaml').name == 'sim_arm'
    (folder / 'robot.yaml').write_text(f'{changed("urdf", "leg.urdf")}')
    with pytest.raises(RobotFileError, match=r'leg\.urdf: cannot be read \(No such file'):
        load(folder / 'robot.yaml')
    (folder / 'leg.urdf').write_bytes(urdf(joint()).encode('utf-16'))
    with pytest.raises(RobotFileError, match=r'leg\.urdf: not XML in UTF-8'):
        load(folder / 'robot.yaml')
