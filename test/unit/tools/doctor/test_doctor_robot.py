# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of a robot file, and of a policy and a robot together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.edge.robot_rig import (
    ARM,
    BASE,
    changed,
    FRONT_PATH,
    PAN_PATH,
    REMOVED,
    ROBOTS,
    SIM_ARM,
)
import yaml

from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.edge.robot.file import load, parse
from lerobot_serve.policies.base import PolicyCamera, PolicyDescription
from lerobot_serve.server.sessions.session_validation import SessionRules
from lerobot_serve.tools.doctor.finding import FindingLevel
from lerobot_serve.tools.doctor.robot import (
    check_agreement,
    check_limits,
    check_robot_file,
    EXAMPLES_OF,
)

ROBOT = load(SIM_ARM)
LIMITS = tuple((action.low, action.high) for action in ROBOT.actions)
RULES = SessionRules(16, '', False, False, 0, 0, 4, 16)
SERVED = PolicyDescription(
    'act',
    'act@0123',
    ROBOT.state_names,
    ROBOT.action_names,
    tuple(PolicyCamera(name, 48, 64) for name in ROBOT.camera_names),
    50,
    30.0,
    action_range=ActionRange(
        tuple(action.low for action in ROBOT.actions),
        tuple(action.high for action in ROBOT.actions),
    ),
)


def verdicts(findings) -> dict[str, FindingLevel]:
    return {finding.name: finding.verdict for finding in findings}


def wrong(findings) -> dict[str, FindingLevel]:
    return {name: v for name, v in verdicts(findings).items() if v is not FindingLevel.OK}


@pytest.mark.parametrize('file', sorted(ROBOTS.glob('*.yaml')), ids=lambda file: file.stem)
def test_the_robots_that_ship_are_well(file):
    robot, findings = check_robot_file(str(file))
    assert robot.name == file.stem
    assert wrong(findings) == {}
    assert {'file', 'joint names', 'limits'} <= verdicts(findings).keys()


def test_limits_in_degrees_are_asked_about():
    pan = ROBOT.actions[0]
    in_degrees = replace(ROBOT, actions=(replace(pan, high=90.0), *ROBOT.actions[1:]))
    (found,) = [finding for finding in check_limits(in_degrees) if finding.name == 'unit']
    assert found.verdict is FindingLevel.WARNING
    assert found.found.startswith(f'{pan.name} ({pan.low:g} to 90): more than two turns')


@pytest.mark.parametrize(
    ('path', 'value', 'text'),
    [
        (f'{PAN_PATH}/min', REMOVED, 'shoulder_pan.pos: min is missing'),
        (f'{PAN_PATH}/max', REMOVED, 'shoulder_pan.pos: max is missing'),
        (f'{PAN_PATH}/max_step', REMOVED, 'max_step or max_velocity is missing'),
        (f'{PAN_PATH}/joint', 'elbow_flex', "joint: duplicate 'elbow_flex'"),
        ('state/0/joints', ['shoulder_pan'] * 2, 'joints must be a list of different names'),
        (f'{PAN_PATH}/joint', 'nose', 'no state value measures nose'),
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
    robot, (finding,) = check_robot_file(str(file))
    assert robot is None
    assert finding.verdict is FindingLevel.FAILURE
    assert text in finding.found
    assert str(file) in finding.found
    assert 'config/robots' in finding.remedy


@pytest.mark.parametrize('content', [None, b'\xff\xfe', b': : :', b'', b'- 1'])
def test_what_is_no_robot_file_is_told(tmp_path, content):
    file = tmp_path / 'robot.yaml'
    if content is not None:
        file.write_bytes(content)
    robot, (finding,) = check_robot_file(str(file))
    assert robot is None
    assert finding.verdict is FindingLevel.FAILURE
    assert str(file) in finding.found


def test_a_directory_is_no_robot_file(tmp_path):
    assert check_robot_file(str(tmp_path))[1][0].verdict is FindingLevel.FAILURE


def test_limits_that_limit_nothing_are_named():
    (finding, _) = check_limits(parse(changed(f'{PAN_PATH}/max_step', 3.8), 'f'))
    assert finding.verdict is FindingLevel.WARNING
    assert 'shoulder_pan.pos' in finding.found
    assert 'max_velocity' in finding.remedy
    just = parse(changed(f'{PAN_PATH}/max_step', 3.7), 'f')
    assert check_limits(just)[0].verdict is FindingLevel.OK


def test_who_pushes_with_all_force_is_told_and_no_trouble():
    told = check_limits(parse(ARM, 'f'))[1]
    assert told.verdict is FindingLevel.OK
    assert 'gripper.pos' in told.found
    assert len(check_limits(parse(BASE, 'f'))) == 1


def test_a_policy_and_its_robot_agree():
    assert verdicts(check_agreement(ROBOT, SERVED, RULES)) == dict.fromkeys(
        ('action names', 'state names', 'cameras', 'units', 'rate'), FindingLevel.OK
    )


@pytest.mark.parametrize(
    ('factor', 'verdict', 'text'),
    [
        (57.3, FindingLevel.FAILURE, 'this looks like deg'),
        (2.0, FindingLevel.WARNING, 'beyond the limits'),
        (1.0, FindingLevel.OK, 'fits the limits'),
    ],
)
def test_the_range_of_a_policy_is_compared_with_the_limits(factor, verdict, text):
    told = ActionRange(
        *(tuple(factor * end for end in ends) for ends in zip(*LIMITS, strict=True))
    )
    found = check_agreement(ROBOT, replace(SERVED, action_range=told), RULES)
    (units,) = (finding for finding in found if finding.name == 'units')
    assert units.verdict is verdict
    assert text in units.found


def test_without_a_range_it_is_said_that_units_were_not_compared():
    found = check_agreement(ROBOT, replace(SERVED, action_range=None), RULES)
    (units,) = (finding for finding in found if finding.name == 'units')
    assert units.verdict is FindingLevel.SKIPPED
    assert 'has no range of its actions' in units.found


@pytest.mark.parametrize(
    ('changes', 'expected', 'text'),
    [
        (
            {'action_names': ROBOT.action_names[::-1]},
            {'action names': FindingLevel.FAILURE},
            'the order differs',
        ),
        (
            {'state_names': ('a', 'b')},
            {'state names': FindingLevel.FAILURE},
            'the names differ',
        ),
        (
            {'cameras': (*SERVED.cameras, PolicyCamera('observation.images.top', 48, 64))},
            {'cameras': FindingLevel.FAILURE},
            "needs cameras ['observation.images.top']",
        ),
        (
            {'cameras': SERVED.cameras[:1]},
            {'cameras': FindingLevel.WARNING},
            'not used by the policy',
        ),
        ({'trained_fps': 50.0}, {'rate': FindingLevel.WARNING}, '0.6x trained speed'),
        ({'trained_fps': 0.0}, {'rate': FindingLevel.WARNING}, 'is unknown'),
    ],
)
def test_what_a_server_would_refuse_or_warn_of_is_found(changes, expected, text):
    findings = check_agreement(ROBOT, replace(SERVED, **changes), RULES)
    assert wrong(findings) == expected
    (found,) = (finding for finding in findings if finding.name in expected)
    assert text in found.found
    assert 'robot file' in found.remedy


@pytest.mark.parametrize(
    ('parameter', 'name'),
    [('state_names', 'state names'), ('action_names', 'action names'), ('trained_fps', 'rate')],
)
def test_a_robot_file_is_not_compared_with_itself(parameter, name):
    findings = check_agreement(ROBOT, SERVED, RULES, (parameter,))
    assert wrong(findings) == {name: FindingLevel.SKIPPED}
    (found,) = (finding for finding in findings if finding.name == name)
    assert f'--parameter {EXAMPLES_OF[parameter]}' in found.found


def test_everything_that_differs_is_told_at_once():
    served = replace(SERVED, action_names=('a',), state_names=('b',), cameras=())
    strict = replace(RULES, require_trained_fps=True)
    findings = check_agreement(ROBOT, replace(served, trained_fps=1.0), strict)
    assert wrong(findings) == {
        'action names': FindingLevel.FAILURE,
        'state names': FindingLevel.FAILURE,
        'cameras': FindingLevel.WARNING,
        'rate': FindingLevel.FAILURE,
    }


def test_a_camera_under_another_name_may_be_renamed():
    renamed = parse(changed('rename_map', {FRONT_PATH.partition('/')[2]: 'top'}), 'f')
    served = replace(SERVED, cameras=(PolicyCamera('top', 48, 64), SERVED.cameras[1]))
    assert wrong(check_agreement(renamed, served, RULES)) == {}
