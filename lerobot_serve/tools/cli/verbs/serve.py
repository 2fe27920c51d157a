# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve serve`: starts a policy server."""

from __future__ import annotations

import argparse
from pathlib import Path

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.cli.node_flags import add_flags, given_values, NodeVerb

HELP = 'start a policy server'
EXAMPLE = (
    'example: lerobot-serve serve /models/act_so101 --device cuda:0 --max-sessions 8  | '
    'lerobot-serve serve reach, a policy that comes with this package'
)
# the executable handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
NODE = NodeVerb(
    'policy_server',
    'lerobot_serve.server.parameters:ServerParameters',
    ('policy_kind', 'policy_path', 'device', 'slot', 'max_sessions', 'scheduler'),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = '%(prog)s [POLICY] [--FLAG VALUE ...]'
    parser.add_argument(
        'policy',
        metavar='POLICY',
        nargs='?',
        help='folder of the policy; KIND:PATH, such as lerobot:/models/v2 or '
        'null:joints=6,chunk=30,cameras=,fps=30; a LeRobot policy of the Hugging Face hub, '
        'USER/REPOSITORY[@REVISION]; or a shipped one: reach',
    )
    add_flags(parser, NODE)


def main(options: argparse.Namespace) -> int:
    """Become the policy server. Raises UserError, ParameterError."""
    from lerobot_serve.tools.cli.node_start import start_node

    start_node(NODE, options, policy_values(options))


def policy_values(options: argparse.Namespace) -> dict[str, str]:
    """Return the parameters of POLICY. Raises UserError."""
    from lerobot_serve.tools.fleet.shipped import policy_of

    if options.policy is None:
        return {}
    flags = given_values(options, NODE)
    values = policy_of(options.policy, Path.cwd())
    if doubled := sorted(values.keys() & flags.keys()):
        raise WrongCommandLine(
            f'POLICY {options.policy!r} and --{doubled[0].replace("_", "-")} name one thing '
            'twice; give one of them'
        )
    return values
