# SPDX-License-Identifier: Apache-2.0
"""Checks the robot file, and whether policy and robot match. Pure except for reading the file."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf, pi

from lerobot_serve.cage.description import Motion
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.edge import wiring
from lerobot_serve.edge.action_queue import ActionQueue, DELAY_RULES
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.unit_check import check_units, UnitFit
from lerobot_serve.edge.session_request import make_session_request
from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_validation import (
    check_cameras,
    check_equal_names,
    check_fps,
)
from lerobot_serve.tools.doctor.finding import failure, Finding, ok, skipped, warning

EXAMPLES = 'the files in config/robots explain every key'
# two turns of a joint in rad; no arm is that many metres long either
TURNS_RAD = 4 * pi
UNITS_PAGE = 'docs/your_robot.md has a section on units'
# parameter of a server -> the finding that compares it
FINDING_OF_PARAMETER = {
    'state_names': 'state names',
    'action_names': 'action names',
    'trained_fps': 'rate',
}
EXAMPLES_OF = {
    'state_names': "'state_names=a, b'",
    'action_names': "'action_names=a, b'",
    'trained_fps': 'trained_fps=30',
}
AGREEMENT_REMEDY = 'correct the robot file, or serve a policy that was trained for this robot'


def check_robot_file(path: str) -> tuple[RobotDescription | None, list[Finding]]:
    """Return the robot description of a file, None if it is invalid, and the findings."""
    parameters = EdgeParameters()
    try:
        robot = wiring.load_robot(path)
        actions = ActionQueue(DELAY_RULES[parameters.skip_rule])
        wiring.make_controller(parameters, robot, RobotDecisions(), actions, lambda: None)
    except ParameterError as error:
        return None, [failure('file', str(error), f'correct it there; {EXAMPLES}')]
    return robot, [
        ok('file', f'{robot.name} at {robot.fps:g} Hz, valid for an edge_controller'),
        ok(
            'joint names',
            f'{len(robot.own_state_names)} state values and {len(robot.actions)} actions, '
            'all names unique, each action is measured',
        ),
        *check_limits(robot),
    ]


def check_limits(robot: RobotDescription) -> list[Finding]:
    """Check that the limits of the robot file are effective."""
    wide = [each.name for each in robot.actions if each.max_step >= each.high - each.low]
    found = (
        [
            warning(
                'limits',
                f'{", ".join(wide)} may move over the whole range in one control step: '
                'max_step or max_velocity has no effect',
                'lower max_velocity to the real limit of the joint; max_step is then '
                'max_velocity / fps',
            )
        ]
        if wide
        else [ok('limits', f'all {len(robot.actions)} actions have a range and a largest step')]
    )
    far = [
        f'{action.name} ({action.low:g} to {action.high:g})'
        for action in robot.actions
        if action.motion is Motion.POSITION and max(-action.low, action.high) > TURNS_RAD
    ]
    if far:
        found.append(
            warning(
                'unit',
                f'{", ".join(far)}: more than two turns in rad; probably degrees',
                'give all limits in the unit that the driver takes, rad and m in ROS; '
                f'{UNITS_PAGE}, if policy and driver differ',
            )
        )
    unlimited = [
        action.name
        for action in robot.actions
        if action.motion is Motion.POSITION and isinf(action.max_lead)
    ]
    if unlimited:
        found.append(
            ok(
                'lead',
                f'no max_lead for {", ".join(unlimited)}: blocked, they use full force',
            )
        )
    return found


def check_agreement(
    robot: RobotDescription,
    served: PolicyDescription,
    rules: ServerParameters,
    taken: tuple[str, ...] = (),
) -> list[Finding]:
    """
    Check whether a server of this policy would accept this robot. `taken` are the parameters
    filled in from the robot file, which are not compared with it.
    """
    request = make_session_request(
        EdgeParameters(),
        robot,
        client_id='doctor',
        instance=0,
        epoch=1,
        task='',
    )
    skip = {FINDING_OF_PARAMETER[name]: _not_known(name) for name in taken}
    found = [
        _names('action names', Refusal.ACTION_NAMES, request.action_names, served.action_names),
        _names('state names', Refusal.STATE_NAMES, request.state_names, served.state_names),
        *_findings_of(
            'cameras', lambda: check_cameras(request, served), _cameras(request, served)
        ),
        compare_units(robot, served),
        *_findings_of('rate', lambda: check_fps(request, served, rules), f'both {robot.fps:g} Hz'),
    ]
    return [skip.get(finding.name, finding) for finding in found]


def _not_known(parameter: str) -> Finding:
    """Return a finding about a missing parameter with its source."""
    return skipped(
        FINDING_OF_PARAMETER[parameter],
        f'not compared: no file of the policy or of its training has {parameter}; give it from '
        f'meta/info.json of the data set: --parameter {EXAMPLES_OF[parameter]}, or put that file '
        'into the directory of the policy as meta/info.json',
    )


def compare_units(robot: RobotDescription, served: PolicyDescription) -> Finding:
    """Check that the range of the policy's actions fits the limits, as an edge does."""
    name = 'units'
    if served.action_range is None:
        missing = 'the policy has no range of its actions (relative ones, or no statistics)'
        return skipped(name, f'not compared with the limits: {missing}')
    checked = check_units(robot, served.action_range)
    if checked.fit is UnitFit.GROSS:
        return failure(name, checked.text, f'an edge refuses this policy; {UNITS_PAGE}')
    if checked.fit is UnitFit.DOUBTFUL:
        return warning(name, checked.text, f'check that this is intended; {UNITS_PAGE}')
    return ok(name, 'the range of the actions in training fits the limits')


def _cameras(request: OpenSessionRequest, served: PolicyDescription) -> str:
    return f'the robot has the {len(served.cameras)} cameras of the policy'


def _names(name: str, code: Refusal, robot: tuple[str, ...], policy: tuple[str, ...]) -> Finding:
    def compare() -> list[str]:
        check_equal_names(code, name.replace(' ', '_'), robot, policy)
        return []

    return _findings_of(name, compare, f'{len(policy)} equal names in the same order')[0]


def _findings_of(name: str, check: Callable[[], list[str]], good: str) -> list[Finding]:
    """Return the result of a check of the server as findings."""
    try:
        warnings = check()
    except SessionRefused as refused:
        return [failure(name, str(refused), AGREEMENT_REMEDY)]
    return [warning(name, text, AGREEMENT_REMEDY) for text in warnings] or [ok(name, good)]
