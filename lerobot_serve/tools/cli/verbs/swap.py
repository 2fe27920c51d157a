# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve swap`: replaces the policy of a running server without a stop."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli import operator_options

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

LOAD_TIMEOUT_S = 300.0
HELP = 'replace the policy of a running server by another one of the same contract'
EXAMPLE = (
    'example: lerobot-serve swap /policy_server pick@0123456789abcdef --wait  '
    f'{operator_options.EXIT_STATUSES}'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument('server', metavar='SERVER', help='full name of a policy server')
    operator_options.set_completer(server, server_names)
    parser.add_argument(
        'policy',
        metavar='FOLDER|VERSION',
        help='folder below the policy_root of the server, relative to it or absolute; or a '
        'version where policy_root is a store: its id, its name or the first digits of its hash',
    )
    parser.add_argument(
        '--wait', action='store_true', help='return when the new policy serves, or has failed'
    )
    parser.add_argument(
        '--load-timeout-s',
        type=operator_options.seconds_argument,
        default=LOAD_TIMEOUT_S,
        metavar='S',
        help=f'time limit of --wait [s] ({LOAD_TIMEOUT_S:g})',
    )
    operator_options.add_options(parser, router=False)


def server_names(**_: object) -> list[str]:
    return operator_options.live_names(lambda client: client.swap_servers())


def main(options: argparse.Namespace) -> int:
    """Return 0 when the policy is being loaded; with --wait, when it serves. Raises UserError."""

    def operation(client: FleetClient) -> int:
        from lerobot_serve.tools.operate.operations import checked
        from lerobot_serve.tools.operate.swap.swap_rules import swap_rule
        from lerobot_serve.tools.operate.swap.swapping import find_server, swap

        before = find_server(client, options.server)
        rule = swap_rule(before, options.policy)
        checked(rule)
        operator_options.confirm(options, before.name, rule.text, asks=rule.asks)
        wait_s = options.load_timeout_s if options.wait else None
        result = swap(client, before, options.policy, wait_s=wait_s)
        return operator_options.print_result(options, result)

    return operator_options.run(options, operation)
