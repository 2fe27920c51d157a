# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve split`: sets the share of new episodes for slot a."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli import operator_options

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

HELP = 'set the share of new episodes for slot a'
EXAMPLE = f'example: lerobot-serve split 80  {operator_options.EXIT_STATUSES}'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'percent', metavar='PERCENT', type=int, help='share of slot a, 0 to 100 [%%]'
    )
    operator_options.add_reason(parser)
    operator_options.add_options(parser)


def main(options: argparse.Namespace) -> int:
    """Return 0 when the router has the split. Raises UserError."""
    from lerobot_serve.tools.operate.rollout.steering import check_percent

    check_percent(options.percent)

    def operation(client: FleetClient) -> int:
        return set_split(client, options)

    return operator_options.run(options, operation)


def set_split(client: FleetClient, options: argparse.Namespace) -> int:
    from lerobot_serve.tools.operate import operations
    from lerobot_serve.tools.operate.rollout.steering import split_rule

    before, percent = operator_options.find_router(client, options), options.percent
    found = operator_options.confirmed(
        options, client, before, 'split', lambda state: split_rule(state, percent)
    )
    if found is None:
        return 0
    result = operations.set_split(client, found[0], percent, options.reason)
    return operator_options.print_result(options, result)
