# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve robot`: pauses, resumes or resets robots, or lets a person command one."""

from __future__ import annotations

import argparse
from typing import Any, TYPE_CHECKING

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.output.text import without_controls

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

HELP = 'pause or resume one robot or all, reset, clear the latch of a cage, take over, hand back'
EXAMPLE = (
    'example: lerobot-serve robot robot_7 pause; lerobot-serve robot --all pause  '
    f'{operator_options.EXIT_STATUSES}'
)
ALL_ACTIONS = ('pause', 'resume')
ACTIONS = ('pause', 'resume', 'reset', 'reset-cage', 'take-over', 'hand-back')


class EveryRobot(argparse.Action):
    """`--all`: the name of a robot is left out."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, *_: object) -> None:
        setattr(namespace, self.dest, True)
        for action in parser._get_positional_actions():
            action.required = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    robot = parser.add_argument(
        'robot', metavar='ROBOT', help='robot_7, /robot_7/edge_controller or its client_id'
    )
    operator_options.set_completer(robot, operator_options.robot_names)
    parser.add_argument(
        'action',
        choices=ACTIONS,
        help='pause: slow down to rest; resume: end the pause; reset: lift a stop, start an '
        'episode; reset-cage: clear the latch of the safety cage; take-over: let a person command '
        'instead of the policy; hand-back: let the policy command again',
    )
    parser.add_argument(
        '--all',
        action=EveryRobot,
        dest='every_robot',
        default=False,
        nargs=0,
        help='pause or resume all robots at the same time, in the place of ROBOT; the exit status '
        'is 4 when one of them did not answer',
    )
    operator_options.add_reason(parser)
    operator_options.add_options(parser, router=False)


def main(options: argparse.Namespace) -> int:
    """Return 0 when the robot, or each one, has run the action. Raises UserError."""

    def operation(client: FleetClient) -> int:
        return run_on_all(client, options) if options.every_robot else run_action(client, options)

    if options.every_robot:
        check_all(options)
    return operator_options.run(options, operation)


def check_all(options: argparse.Namespace) -> None:
    """Move the action behind `--all` to its place. Raises WrongCommandLine."""
    # without a name the parser takes the action for one
    words = [word for word in (options.robot, options.action) if word]
    if len(words) != 1 or words[0] not in ALL_ACTIONS:
        raise WrongCommandLine(
            f'--all is given with {" or ".join(ALL_ACTIONS)} and no name of a robot, got '
            f'{" ".join(words) or "nothing"}: lerobot-serve robot --all pause'
        )
    options.action = words[0]


def run_on_all(client: FleetClient, options: argparse.Namespace) -> int:
    """Run the action on all robots; print a line for each as soon as it is done."""
    from lerobot_serve.tools.operate.operations import checked
    from lerobot_serve.tools.operate.robots import every_robot
    from lerobot_serve.tools.operate.rule import RobotVerb

    def report(result: every_robot.RobotResult) -> None:
        if not options.json:
            print(without_controls(f'{result.name}: {result.text}'), flush=True)

    verb = RobotVerb(options.action)
    if verb is RobotVerb.PAUSE:
        # nothing is asked and no state is waited for before the first one is paused
        results = every_robot.pause_every_robot(
            client, client.known_robots(), options.reason, report
        )
    else:
        robots = client.find_robots()
        rule = every_robot.every_robot_rule(verb, robots)
        if checked(rule):
            operator_options.confirm(options, 'all robots', rule.text, asks=rule.asks)
        results = every_robot.resume_every_robot(client, robots, options.reason, report)
    operator_options.print_found(
        options,
        [result.as_json() for result in results],
        lambda: without_controls(every_robot.summary(verb, results)),
    )
    return every_robot.exit_status(results)


def run_action(client: FleetClient, options: argparse.Namespace) -> int:
    from lerobot_serve.tools.operate.commands import robot_rule, RobotVerb
    from lerobot_serve.tools.operate.names import resolve_robot
    from lerobot_serve.tools.operate.operations import checked, run_robot_verb

    verb = RobotVerb(options.action)
    robot = resolve_robot(options.robot, client.find_robots(options.robot))
    rule = robot_rule(verb, robot)
    if not checked(rule):
        return operator_options.nothing_to_do(options, verb.value, robot.node, rule.text)
    operator_options.confirm(options, robot.node, rule.text, asks=rule.asks)
    result = run_robot_verb(client, robot, verb, options.reason)
    return operator_options.print_result(options, result)
