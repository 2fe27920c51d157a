# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve robot`: pauses, resumes or resets one robot, or lets a person command it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli import operator_options

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

HELP = 'pause, resume or reset one robot, clear the latch of its cage, take over, hand back'
EXAMPLE = f'example: lerobot-serve robot robot_7 pause  {operator_options.EXIT_STATUSES}'
ACTIONS = ('pause', 'resume', 'reset', 'reset-cage', 'take-over', 'hand-back')


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
    operator_options.add_reason(parser)
    operator_options.add_options(parser, router=False)


def main(options: argparse.Namespace) -> int:
    """Return 0 when the robot has run the action. Raises UserError."""

    def operation(client: FleetClient) -> int:
        return run_action(client, options)

    return operator_options.run(options, operation)


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
