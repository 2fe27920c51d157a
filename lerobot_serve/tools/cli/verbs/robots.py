# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve robots`: lists the robots of the fleet, worst first."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli import operator_options

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

HELP = 'list the robots of the fleet, worst first'
EXAMPLE = 'example: lerobot-serve robots  | exit status 0, 1 when no robot is found'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--forget',
        action='store_true',
        help='list no more what is not found now: robots that were stopped or removed',
    )
    operator_options.add_options(parser, router=False, changes=False)


def main(options: argparse.Namespace) -> int:
    """Return 0 when there are robots. Raises UserError."""

    def operation(client: FleetClient) -> int:
        from lerobot_serve.errors import UserError
        from lerobot_serve.tools.operate import fleet_table

        if options.forget:
            client.forget_robots()
        found = client.find_robots()
        if not found:
            raise UserError(
                f'no robot is found within {options.timeout_s:g} s: check that its '
                'edge_controller runs, and that ROS_DOMAIN_ID is the same here and there '
                '(callers of a gateway are no robots: its log and metrics have them)'
            )
        operator_options.print_found(
            options, fleet_table.as_json(found), lambda: fleet_table.as_text(found)
        )
        return 0

    return operator_options.run(options, operation)
