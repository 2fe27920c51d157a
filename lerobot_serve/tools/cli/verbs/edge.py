# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve edge`: starts the edge controller of one robot."""

from __future__ import annotations

import argparse
from pathlib import Path

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.cli.node_flags import add_flags, given_values, NodeVerb

HELP = 'start the edge controller of a robot'
EXAMPLE = (
    'example: lerobot-serve edge my_arm.yaml --client-id robot_1 --servers /policy_router  | '
    'the namespace is the client_id unless --namespace is given'
)
# the executable handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
NODE = NodeVerb(
    'edge_controller',
    'lerobot_serve.edge.parameters:EdgeParameters',
    ('client_id', 'servers', 'robot_file', 'network_profile', 'task', 'codec'),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = '%(prog)s [ROBOT] [--FLAG VALUE ...]'
    parser.add_argument(
        'robot',
        metavar='ROBOT',
        nargs='?',
        help='YAML file that describes the robot, or a shipped one: sim_arm, so101, ... (sim_arm)',
    )
    add_flags(parser, NODE)


def main(options: argparse.Namespace) -> int:
    """Become the edge controller. Raises UserError, ParameterError."""
    from lerobot_serve.contract.names import namespace
    from lerobot_serve.tools.cli.node_start import start_node

    flags = given_values(options, NODE)
    robot = robot_values(options, 'robot_file' in flags)
    start_node(NODE, options, robot, namespace('', flags.get('client_id')))


def robot_values(options: argparse.Namespace, has_flag: bool) -> dict[str, str]:
    """Return the parameter of ROBOT. Raises UserError."""
    from lerobot_serve.tools.fleet.shipped import ROBOTS, shipped_or_path

    if options.robot is None:
        return {}
    if has_flag:
        raise WrongCommandLine(
            f'ROBOT {options.robot!r} and --robot-file name one thing twice; give one of them'
        )
    found = shipped_or_path('robot file', options.robot, Path.cwd(), ROBOTS)
    return {'robot_file': str(found)}
