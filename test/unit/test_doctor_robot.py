"""What the doctor says of a robot file, and of a policy and a robot together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from robot_rig import ARM, BASE, changed, FRONT_PATH, PAN_PATH, REMOVED, ROBOTS, SIM_ARM
import yaml

from lerobot_serve.doctor.finding import Verdict
from lerobot_serve.doctor.robot import agreement, EXAMPLES_OF, limits, read
from lerobot_serve.edge.robot.file import load, parse
from lerobot_serve.policies.base import Camera, Description
from lerobot_serve.server.contract import Rules
from lerobot_serve.wire.action_range import ActionRange

ROBOT = load(SIM_ARM)
LIMITS = tuple((action.low, action.high) for action in ROBOT.actions)
RULES = Rules(16, '', False, False, 0, 0, 4, 16)
SERVED = Description(
    'act',
    'act@0123',
    ROBOT.state_names,
    ROBOT.action_names,
    tuple(Camera(name, 48, 64) for name in ROBOT.camera_names),
    50,
    30.0,
    action_range=ActionRange(
        tuple(action.low for action in ROBOT.actions),
        tuple(action.high for action in ROBOT.actions),
    ),
)


def verdicts(findings) -> dict[str, Verdict]:
    return {finding.name: finding.verdict for finding in findings}


def wrong(findings) -> dict[str, Verdict]:
    return {name: v for name, v in verdicts(findings).items() if v is not Verdict.OK}


@pytest.mark.parametrize('file', sorted(ROBOTS.glob('*.yaml')), ids=lambda file: file.stem)
def test_the_robots_that_ship_are_well(file):
    robot, findings = read(str(file))
    assert robot.name == file.stem
    assert wrong(findings) == {}
    assert {'file', 'joint names', 'limits'} <= verdicts(findings).keys()


def test_limits_in_degrees_are_asked_about():
    pan = ROBOT.actions[0]
    in_degrees = replace(ROBOT, actions=(replace(pan, high=90.0), *ROBOT.actions[1:]))
    (found,) = [finding for finding in limits(in_degrees) if finding.name == 'unit']
    assert found.verdict is Verdict.WARNING
    assert found.found.startswith(f'{pan.name} ({pan.low:g} to 90): more than two turns')


@pytest.mark.parametrize(
    ('path', 'value', 'text'),
    [
        (f'{PAN_PATH}/min', REMOVED, 'shoulder_pan.pos: min is missing'),
        (f'{PAN_PATH}/max', REMOVED, 'shoulder_pan.pos: max is missing'),
        (f'{PAN_PATH}/max_step', REMOVED, 'max_step or max_velocity is missing'),
        (f'{PAN_PATH}/joint', 'elbow_flex', "joint: 'elbow_flex' is there twice"),
        ('state/0/joints', ['shoulder_pan'] * 2, "'shoulder_pan' is there twice"),
        (f'{PAN_PATH}/joint', 'nose', 'which value of the state tells where nose is'),
        ('command/topic', 'joint states', 'must be the name of a topic'),
    ],
)
def test_a_mistake_in_the_file_is_told_as_the_edge_tells_it(tmp_path, path, value, text):
    content = changed(path, value)
    if path.endswith('joint') and value == 'nose':
        content['actions']['nose.pos'] = content['actions'].pop('shoulder_pan.pos')
        content.pop('safe_pose')
    file = tmp_path / 'robot.yaml'
    file.write_text(yaml.safe_dump(content))
    robot, (finding,) = read(str(file))
    assert robot is None
    assert finding.verdict is Verdict.FAILURE
    assert text in finding.found
    assert str(file) in finding.found
    assert 'config/robots' in finding.remedy


@pytest.mark.parametrize('content', [None, b'\xff\xfe', b': : :', b'', b'- 1'])
def test_what_is_no_robot_file_is_told(tmp_path, content):
    file = tmp_path / 'robot.yaml'
    if content is not None:
        file.write_bytes(content)
    robot, (finding,) = read(str(file))
    assert robot is None
    assert finding.verdict is Verdict.FAILURE
    assert str(file) in finding.found


def test_a_directory_is_no_robot_file(tmp_path):
    assert read(str(tmp_path))[1][0].verdict is Verdict.FAILURE


def test_limits_that_limit_nothing_are_named():
    (finding, _) = limits(parse(changed(f'{PAN_PATH}/max_step', 3.8), 'f'))
    assert finding.verdict is Verdict.WARNING
    assert 'shoulder_pan.pos' in finding.found
    assert 'max_velocity' in finding.remedy
    just = parse(changed(f'{PAN_PATH}/max_step', 3.7), 'f')
    assert limits(just)[0].verdict is Verdict.OK


def test_who_pushes_with_all_force_is_told_and_no_trouble():
    told = limits(parse(ARM, 'f'))[1]
    assert told.verdict is Verdict.OK
    assert 'gripper.pos' in told.found
    assert len(limits(parse(BASE, 'f'))) == 1


def test_a_policy_and_its_robot_agree():
    assert verdicts(agreement(ROBOT, SERVED, RULES)) == dict.fromkeys(
        ('action names', 'state names', 'cameras', 'units', 'rate'), Verdict.OK
    )


@pytest.mark.parametrize(
    ('factor', 'verdict', 'text'),
    [
        (57.3, Verdict.FAILURE, 'this looks like deg'),
        (2.0, Verdict.WARNING, 'beyond the limits'),
        (1.0, Verdict.OK, 'fits the limits'),
    ],
)
def test_the_range_of_a_policy_is_compared_with_the_limits(factor, verdict, text):
    told = ActionRange(
        *(tuple(factor * end for end in ends) for ends in zip(*LIMITS, strict=True))
    )
    found = agreement(ROBOT, replace(SERVED, action_range=told), RULES)
    (units,) = (finding for finding in found if finding.name == 'units')
    assert units.verdict is verdict
    assert text in units.found


def test_without_a_range_it_is_said_that_units_were_not_compared():
    found = agreement(ROBOT, replace(SERVED, action_range=None), RULES)
    (units,) = (finding for finding in found if finding.name == 'units')
    assert units.verdict is Verdict.SKIPPED
    assert 'tells no range of its actions' in units.found


@pytest.mark.parametrize(
    ('changes', 'expected', 'text'),
    [
        (
            {'action_names': ROBOT.action_names[::-1]},
            {'action names': Verdict.FAILURE},
            'the order differs',
        ),
        (
            {'state_names': ('a', 'b')},
            {'state names': Verdict.FAILURE},
            'the names differ',
        ),
        (
            {'cameras': (*SERVED.cameras, Camera('observation.images.top', 48, 64))},
            {'cameras': Verdict.FAILURE},
            "needs cameras ['observation.images.top']",
        ),
        ({'cameras': SERVED.cameras[:1]}, {'cameras': Verdict.WARNING}, 'not used by the policy'),
        ({'trained_fps': 50.0}, {'rate': Verdict.WARNING}, '0.6 times as fast'),
        ({'trained_fps': 0.0}, {'rate': Verdict.WARNING}, 'does not say'),
    ],
)
def test_what_a_server_would_refuse_or_warn_of_is_found(changes, expected, text):
    findings = agreement(ROBOT, replace(SERVED, **changes), RULES)
    assert wrong(findings) == expected
    (found,) = (finding for finding in findings if finding.name in expected)
    assert text in found.found
    assert 'robot file' in found.remedy


@pytest.mark.parametrize(
    ('parameter', 'name'),
    [('state_names', 'state names'), ('action_names', 'action names'), ('trained_fps', 'rate')],
)
def test_a_robot_file_is_not_compared_with_itself(parameter, name):
    findings = agreement(ROBOT, SERVED, RULES, (parameter,))
    assert wrong(findings) == {name: Verdict.SKIPPED}
    (found,) = (finding for finding in findings if finding.name == name)
    assert f'--parameter {EXAMPLES_OF[parameter]}' in found.found


def test_everything_that_differs_is_told_at_once():
    served = replace(SERVED, action_names=('a',), state_names=('b',), cameras=())
    strict = replace(RULES, strict_fps=True)
    findings = agreement(ROBOT, replace(served, trained_fps=1.0), strict)
    assert wrong(findings) == {
        'action names': Verdict.FAILURE,
        'state names': Verdict.FAILURE,
        'cameras': Verdict.WARNING,
        'rate': Verdict.FAILURE,
    }


def test_a_camera_under_another_name_may_be_renamed():
    renamed = parse(changed('rename_map', {FRONT_PATH.partition('/')[2]: 'top'}), 'f')
    served = replace(SERVED, cameras=(Camera('top', 48, 64), SERVED.cameras[1]))
    assert wrong(agreement(renamed, served, RULES)) == {}
