# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve outcome`: reports to the router how an episode ended."""

from __future__ import annotations

from typing import Annotated, Literal, TYPE_CHECKING

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.operator_options import Operator, RouterName
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.output.report import Report

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

HELP = 'report to the router how an episode ended'
EXAMPLE = f'example: lerobot-serve outcome ep_42 failure  {operator_options.EXIT_STATUSES}'
# in the refusal of a router
UNKNOWN_EPISODE = 'no episode'


def episode_names(**_: object) -> list[str]:
    """Return the episodes that run now."""
    return operator_options.live_names(
        lambda client: [
            robot.edge.episode_id for robot in client.find_robots() if robot.edge.episode_id
        ]
    )


def report_outcome(
    episode: Annotated[
        str,
        Argument(
            'episode id; `lerobot-serve robots` lists those that run',
            'EPISODE',
            names=episode_names,
        ),
    ],
    outcome: Annotated[Literal['success', 'failure', 'aborted'], Argument('how it ended')],
    *,
    reason: Annotated[
        str,
        Argument(
            'why, for the trace and the outcome; your name is added',
            'TEXT',
            flags=('--reason', '--text'),
        ),
    ] = '',
    router: RouterName = '',
    operator: Operator,
) -> Report:
    """Count the outcome. Raises UserError, ResultUnknown."""
    from lerobot_serve.tools.operate import operations

    with operator.client() as client:
        name = operator_options.find_router(client, router).name
        # an outcome is a fact about the past: no traffic moves by it alone
        operator.confirm(name, f'count episode {episode} as {outcome}', asks=False)
        try:
            return operations.report_outcome(client, name, episode, outcome, reason).report()
        except UserError as error:
            if UNKNOWN_EPISODE not in str(error):
                raise
            raise UserError(f'{error}{_hint(client, episode)}') from error


def _hint(client: FleetClient, episode: str) -> str:
    """Return the running episode that may be meant, as a question."""
    from lerobot_serve.tools.operate.names import nearest_name

    running = [robot.edge.episode_id for robot in client.find_robots(may_be_none=True)]
    near = nearest_name(episode, [each for each in running if each and each != episode])
    return f'; did you mean {near}?' if near else ''


add_arguments, main = verb_of(report_outcome)
