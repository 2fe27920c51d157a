"""The robot file, and whether a policy and a robot agree. Pure but for reading the file."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf, pi

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.doctor.finding import failure, Finding, ok, skipped, warning
from lerobot_serve.edge import preparation
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.queue.actions import ActionQueue
from lerobot_serve.edge.queue.delay import RULES
from lerobot_serve.edge.robot.description import Robot
from lerobot_serve.edge.unit_check import check, Fit
from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies.base import Description
from lerobot_serve.server.contract import check_cameras, check_fps, check_same_names, Rules
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import Refused, SessionAsk

EXAMPLES = 'the files in config/robots explain every key'
# two turns of a joint; no arm is so many metres long either
TURNS_RAD = 4 * pi
UNITS_PAGE = 'docs/your_robot.md has a section on units'
# parameter of a server -> the finding that compares it
COMPARED = {
    'state_names': 'state names',
    'action_names': 'action names',
    'trained_fps': 'rate',
}
EXAMPLES_OF = {
    'state_names': "'state_names=a, b'",
    'action_names': "'action_names=a, b'",
    'trained_fps': 'trained_fps=30',
}
AGREE = 'correct the robot file, or serve a policy that was trained for this robot'


def read(path: str) -> tuple[Robot | None, list[Finding]]:
    """Return the robot of a file, and what is wrong with it; None when it cannot be used."""
    parameters = EdgeParameters()
    try:
        robot = preparation.load_robot(path)
        actions = ActionQueue(RULES[parameters.delay_rule])
        preparation.controller(parameters, robot, actions, lambda: None)
    except ParameterError as error:
        return None, [failure('file', str(error), f'correct it there; {EXAMPLES}')]
    return robot, [
        ok('file', f'{robot.name} at {robot.fps:g} Hz, an edge_controller takes it'),
        ok(
            'joint names',
            f'{len(robot.own_state_names)} values of the state and {len(robot.actions)} actions, '
            'none twice, each action is measured',
        ),
        *limits(robot),
    ]


def limits(robot: Robot) -> list[Finding]:
    """Return whether the limits, which no file may leave out, limit anything."""
    wide = [action.name for action in robot.actions if _is_wide(action)]
    found = (
        [
            warning(
                'limits',
                f'{", ".join(wide)} may go from one end to the other in one control step: '
                'max_step or max_velocity limits nothing',
                'lower max_velocity to what the joint may really do; max_step is then '
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
                f'{", ".join(far)}: more than two turns in rad; are these degrees?',
                'give all limits in the unit that the driver takes, rad and m in ROS; '
                f'{UNITS_PAGE}, where policy and driver differ',
            )
        )
    pushing = [
        action.name
        for action in robot.actions
        if action.motion is Motion.POSITION and isinf(action.max_lead)
    ]
    if pushing:
        found.append(
            ok('lead', f'no max_lead for {", ".join(pushing)}: blocked, they push with all force')
        )
    return found


def _is_wide(action: ActionLimit) -> bool:
    return action.max_step >= action.high - action.low


def agreement(
    robot: Robot, served: Description, rules: Rules, taken: tuple[str, ...] = ()
) -> list[Finding]:
    """
    Return what a server of this policy would say to this robot. What was `taken` from the robot
    file, by the names of parameters, cannot be compared with it.
    """
    ask = preparation.session_ask(
        EdgeParameters(),
        robot,
        client_id='doctor',
        instance=0,
        epoch=1,
        reply_topic='/doctor',
        task='',
    )
    skip = {COMPARED[name]: _not_known(name) for name in taken}
    found = [
        _names('action names', Refusal.ACTION_NAMES, ask.action_names, served.action_names),
        _names('state names', Refusal.STATE_NAMES, ask.state_names, served.state_names),
        *_judged('cameras', lambda: check_cameras(ask, served), _cameras(ask, served)),
        units(robot, served),
        *_judged('rate', lambda: check_fps(ask, served, rules), f'both at {robot.fps:g} Hz'),
    ]
    return [skip.get(finding.name, finding) for finding in found]


def _not_known(parameter: str) -> Finding:
    """Return that a parameter is missing, and where to get it."""
    return skipped(
        COMPARED[parameter],
        f'not compared: no file of the policy or of its training holds {parameter}; give it from '
        f'meta/info.json of the data set: --parameter {EXAMPLES_OF[parameter]}, or put that file '
        'into the directory of the policy as meta/info.json',
    )


def units(robot: Robot, served: Description) -> Finding:
    """Return whether the range of the policy's actions fits the limits, as an edge looks at it."""
    name = 'units'
    if served.action_range is None:
        missing = 'the policy tells no range of its actions (relative ones, or no statistics)'
        return skipped(name, f'not compared with the limits: {missing}')
    checked = check(robot, served.action_range)
    if checked.fit is Fit.GROSS:
        return failure(name, checked.text, f'an edge refuses this policy; {UNITS_PAGE}')
    if checked.fit is Fit.DOUBTFUL:
        return warning(name, checked.text, f'see that it is meant; {UNITS_PAGE}')
    return ok(name, 'the range of the actions in training fits the limits')


def _cameras(ask: SessionAsk, served: Description) -> str:
    return f'the {len(served.cameras)} that the policy wants are among the {len(ask.cameras)}'


def _names(name: str, code: Refusal, robot: tuple[str, ...], policy: tuple[str, ...]) -> Finding:
    def compare() -> list[str]:
        check_same_names(code, name.replace(' ', '_'), robot, policy)
        return []

    return _judged(name, compare, f'the same {len(policy)}, in the same order')[0]


def _judged(name: str, check: Callable[[], list[str]], good: str) -> list[Finding]:
    """Return what a check of the server says, as findings."""
    try:
        warnings = check()
    except Refused as refused:
        return [failure(name, str(refused), AGREE)]
    return [warning(name, text, AGREE) for text in warnings] or [ok(name, good)]
