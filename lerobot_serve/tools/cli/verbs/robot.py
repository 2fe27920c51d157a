# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve robot`: pauses, resumes or resets robots, or lets a person command one."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Annotated, Any, Literal

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.operator_options import Operator, Reason
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.output.report import Report
from lerobot_serve.tools.output.text import without_controls

HELP = 'pause or resume one robot or all, reset, clear the latch of a cage, take over, hand back'
EXAMPLE = (
    'example: lerobot-serve robot robot_7 pause; lerobot-serve robot --all pause  '
    f'{operator_options.EXIT_STATUSES}'
)
ALL_ACTIONS = ('pause', 'resume')


class EveryRobot(argparse.Action):
    """`--all`: the name of a robot is left out."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, *_: object) -> None:
        setattr(namespace, self.dest, True)
        for action in parser._get_positional_actions():
            action.required = False


def robot(
    robot: Annotated[
        str,
        Argument(
            'robot_7, /robot_7/edge_controller or its client_id',
            'ROBOT',
            names=operator_options.robot_names,
        ),
    ],
    action: Annotated[
        Literal['pause', 'resume', 'reset', 'reset-cage', 'take-over', 'hand-back'],
        Argument(
            'pause: slow down to rest; resume: end the pause; reset: lift a stop, start an '
            'episode; reset-cage: clear the latch of the safety cage; take-over: let a person '
            'command instead of the policy; hand-back: let the policy command again'
        ),
    ],
    *,
    every_robot: Annotated[
        bool,
        Argument(
            'pause or resume all robots at the same time, in the place of ROBOT; the exit status '
            'is 4 when one of them did not answer',
            flags=('--all',),
            action=EveryRobot,
        ),
    ] = False,
    reason: Reason = '',
    operator: Operator,
    json: Annotated[bool, Argument('print a JSON object')] = False,
) -> Report:
    """Run the action on the robot, or on each one. Raises UserError, ResultUnknown."""
    if every_robot:
        # without a name the parser takes the action for one
        words = [word for word in (robot, action) if word]
        return run_on_all(checked_action(words), reason, operator, shows_progress=not json)
    return run_action(robot, action, reason, operator)


def checked_action(words: list[str]) -> str:
    """Return the action behind `--all`. Raises WrongCommandLine."""
    if len(words) != 1 or words[0] not in ALL_ACTIONS:
        raise WrongCommandLine(
            f'--all is given with {" or ".join(ALL_ACTIONS)} and no name of a robot, got '
            f'{" ".join(words) or "nothing"}: lerobot-serve robot --all pause'
        )
    return words[0]


def run_on_all(action: str, reason: str, operator: Operator, *, shows_progress: bool) -> Report:
    """Run the action on all robots; print a line for each as soon as it is done."""
    from lerobot_serve.tools.operate import robots as every_robot
    from lerobot_serve.tools.operate.operations import checked
    from lerobot_serve.tools.operate.rule import RobotVerb

    def show(result: every_robot.RobotResult) -> None:
        if shows_progress:
            print(without_controls(f'{result.name}: {result.text}'), flush=True)

    verb = RobotVerb(action)
    with operator.client() as client:
        if verb is RobotVerb.PAUSE:
            # nothing is asked and no state is waited for before the first one is paused
            results = every_robot.pause_every_robot(client, client.known_robots(), reason, show)
        else:
            robots = client.find_robots()
            rule = every_robot.every_robot_rule(verb, robots)
            if checked(rule):
                operator.confirm('all robots', rule.text, asks=rule.asks)
            results = every_robot.resume_every_robot(client, robots, reason, show)
    return Report(
        {'verb': verb.value, 'robots': list(map(asdict, results))},
        [every_robot.summary(verb, results)],
        every_robot.exit_status(results),
        has_changed=True,
    )


def run_action(name: str, action: str, reason: str, operator: Operator) -> Report:
    """Run the action on one robot. Raises UserError, ResultUnknown."""
    from lerobot_serve.tools.operate.commands import robot_rule
    from lerobot_serve.tools.operate.names import resolve_robot
    from lerobot_serve.tools.operate.operations import checked, run_robot_verb
    from lerobot_serve.tools.operate.rule import RobotVerb

    verb = RobotVerb(action)
    with operator.client() as client:
        found = resolve_robot(name, client.find_robots(name))
        rule = robot_rule(verb, found)
        if not checked(rule):
            return operator_options.nothing_to_do(verb.value, found.node, rule.text)
        operator.confirm(found.node, rule.text, asks=rule.asks)
        return run_robot_verb(client, found, verb, reason).report()


add_arguments, main = verb_of(robot)
