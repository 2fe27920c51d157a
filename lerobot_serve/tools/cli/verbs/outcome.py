# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve outcome`: reports to the router how an episode ended."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli import operator_options

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

HELP = 'report to the router how an episode ended'
EXAMPLE = f'example: lerobot-serve outcome ep_42 failure  {operator_options.EXIT_STATUSES}'
# in the refusal of a router
UNKNOWN_EPISODE = 'no episode'
OUTCOMES = ('success', 'failure', 'aborted')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    episode = parser.add_argument(
        'episode',
        metavar='EPISODE',
        help='episode id; `lerobot-serve robots` lists those that run',
    )
    operator_options.set_completer(episode, episode_names)
    parser.add_argument('outcome', choices=OUTCOMES, help='how it ended')
    parser.add_argument(
        '--reason',
        '--text',
        default='',
        metavar='TEXT',
        help='why, for the trace and the outcome; your name is added',
    )
    operator_options.add_options(parser)


def main(options: argparse.Namespace) -> int:
    """Return 0 when the outcome counts. Raises UserError."""

    def operation(client: FleetClient) -> int:
        return report(client, options)

    return operator_options.run(options, operation)


def report(client: FleetClient, options: argparse.Namespace) -> int:
    from lerobot_serve.tools.operate.operations import report_outcome

    router, episode = operator_options.find_router(client, options).name, options.episode
    will = f'count episode {episode} as {options.outcome}'
    # an outcome is a fact about the past: no traffic moves by it alone
    operator_options.confirm(options, router, will, asks=False)
    try:
        result = report_outcome(client, router, episode, options.outcome, options.reason)
    except UserError as error:
        if UNKNOWN_EPISODE not in str(error):
            raise
        raise UserError(f'{error}{_hint(client, episode)}') from error
    return operator_options.print_result(options, result)


def _hint(client: FleetClient, episode: str) -> str:
    """Return the running episode that may be meant, as a question."""
    from lerobot_serve.tools.operate.names import nearest_name

    running = [robot.edge.episode_id for robot in client.find_robots(may_be_none=True)]
    near = nearest_name(episode, [each for each in running if each and each != episode])
    return f'; did you mean {near}?' if near else ''


def episode_names(**_: object) -> list[str]:
    """Return the episodes that run now."""
    return operator_options.live_names(
        lambda client: [
            robot.edge.episode_id for robot in client.find_robots() if robot.edge.episode_id
        ]
    )
