# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve outcome`: reports to the router how an episode ended."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli import operator_options

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

HELP = 'report to the router how an episode ended'
EXAMPLE = f'example: lerobot-serve outcome ep_42 failure  {operator_options.EXIT_STATUSES}'
OUTCOMES = ('success', 'failure', 'aborted')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    episode = parser.add_argument(
        'episode',
        metavar='EPISODE',
        help='episode id; `lerobot-serve robots` lists those that run',
    )
    operator_options.set_completer(episode, episode_names)
    parser.add_argument('outcome', choices=OUTCOMES, help='how it ended')
    parser.add_argument('--text', default='', help='what a person should read about it')
    operator_options.add_options(parser, changes=False)


def main(options: argparse.Namespace) -> int:
    """Return 0 when the outcome counts. Raises UserError."""

    def operation(client: FleetClient) -> int:
        from lerobot_serve.tools.operate.operations import report_outcome

        router = operator_options.find_router(client, options)
        result = report_outcome(
            client, router.name, options.episode, options.outcome, options.text
        )
        return operator_options.print_result(options, result)

    return operator_options.run(options, operation)


def episode_names(**_: object) -> list[str]:
    """Return the episodes that run now."""
    return operator_options.live_names(
        lambda client: [robot.episode_id for robot in client.find_robots() if robot.episode_id]
    )
