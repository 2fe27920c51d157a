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
from support.tools.findings import by_name, listed, wrong
import yaml

from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.edge.robot.file import load, parse
from lerobot_serve.policies.base import PolicyCamera, PolicyDescription
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.doctor.finding import FindingLevel
from lerobot_serve.tools.doctor.robot import (
    check_agreement,
    check_limits,
    check_robot_file,
    EXAMPLES_OF,
)

ROBOT = load(SIM_ARM)
LIMITS = tuple((action.low, action.high) for action in ROBOT.actions)
RULES = ServerParameters()
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


@pytest.mark.parametrize('file', sorted(ROBOTS.glob('*.yaml')), ids=lambda file: file.stem)
def test_the_robots_that_ship_are_well(file):
    robot, findings = check_robot_file(str(file))
    assert robot.name == file.stem
    assert wrong(findings) == []
    assert {'file', 'joint names', 'limits'} <= by_name(findings).keys()


def test_a_mistake_in_the_file_is_told_as_the_edge_tells_it(tmp_path):
    file = tmp_path / 'robot.yaml'
    file.write_text(yaml.safe_dump(changed(f'{PAN_PATH}/min', REMOVED)))
    robot, (finding,) = check_robot_file(str(file))
    assert robot is None
    assert finding.verdict is FindingLevel.FAILURE
    assert str(file) in finding.found and 'shoulder_pan.pos: min is missing' in finding.found
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


@pytest.mark.golden
def test_what_is_said_of_limits(golden):
    pan, *others = ROBOT.actions
    robots = {
        'in degrees': replace(ROBOT, actions=(replace(pan, high=90.0), *others)),
        'that limit nothing': parse(changed(f'{PAN_PATH}/max_step', 3.8), 'f'),
        'that just limit': parse(changed(f'{PAN_PATH}/max_step', 3.7), 'f'),
        # who pushes with all force is told, and no trouble
        'of an arm': parse(ARM, 'f'),
        'of a base': parse(BASE, 'f'),
    }
    texts = [f'{name}\n{listed(check_limits(robot))}' for name, robot in robots.items()]
    golden.holds('doctor/limits.txt', '\n'.join(texts))


def ranged(factor: float) -> ActionRange:
    """Return the range of a policy whose unit is this much smaller than that of the limits."""
    return ActionRange(
        *(tuple(factor * each for each in end) for end in zip(*LIMITS, strict=True))
    )


STRICT = replace(RULES, require_trained_fps=True)
EXTRA = PolicyCamera('observation.images.top', 48, 64)
# what the policy has in the place of what fits, and the parameters that came from the robot file
AGREEMENTS = {
    'they agree': {},
    'limits in degrees': {'action_range': ranged(57.3)},
    'beyond the limits': {'action_range': ranged(2.0)},
    'within the limits': {'action_range': ranged(1.0)},
    'no range': {'action_range': None},
    'another order': {'action_names': ROBOT.action_names[::-1]},
    'other names': {'state_names': ('a', 'b')},
    'a camera more': {'cameras': (*SERVED.cameras, EXTRA)},
    'a camera less': {'cameras': SERVED.cameras[:1]},
    'another rate': {'trained_fps': 50.0},
    'no rate': {'trained_fps': 0.0},
}
NOTHING_FITS = {'action_names': ('a',), 'state_names': ('b',), 'cameras': (), 'trained_fps': 1.0}


@pytest.mark.golden
def test_what_a_server_would_refuse_or_warn_of_is_found(golden):
    found = {
        name: check_agreement(ROBOT, replace(SERVED, **changes), RULES)
        for name, changes in AGREEMENTS.items()
    }
    served = replace(SERVED, **NOTHING_FITS)
    found['all differs, and the rate is required'] = check_agreement(ROBOT, served, STRICT)
    for name in EXAMPLES_OF:
        # a robot file is not compared with itself
        found[f'{name} of the robot file'] = check_agreement(ROBOT, SERVED, RULES, (name,))
    text = '\n'.join(f'{name}\n{listed(findings)}' for name, findings in found.items())
    golden.holds('doctor/agreement.txt', text)


def test_a_camera_under_another_name_may_be_renamed():
    renamed = parse(changed('rename_map', {FRONT_PATH.partition('/')[2]: 'top'}), 'f')
    served = replace(SERVED, cameras=(PolicyCamera('top', 48, 64), SERVED.cameras[1]))
    assert wrong(check_agreement(renamed, served, RULES)) == []
