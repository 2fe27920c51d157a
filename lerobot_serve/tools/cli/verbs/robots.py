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
        from lerobot_serve.tools.operate.robots import fleet_table

        if options.forget:
            client.forget_robots()
        found = client.find_robots()
        if not found:
            raise UserError(client.no_robot_text)
        operator_options.print_found(
            options, fleet_table.as_json(found), lambda: fleet_table.as_text(found)
        )
        return 0

    return operator_options.run(options, operation)
