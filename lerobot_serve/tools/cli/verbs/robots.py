# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve robots`: lists the robots of the fleet, worst first."""

from __future__ import annotations

from typing import Annotated

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.operator_options import Fleet
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.output.report import Report

HELP = 'list the robots of the fleet, worst first'
EXAMPLE = 'example: lerobot-serve robots  | exit status 0, 1 when no robot is found'


def robots(
    *,
    forget: Annotated[
        bool, Argument('list no more what is not found now: robots that were stopped or removed')
    ] = False,
    fleet: Fleet,
) -> Report:
    """Return the robots. Raises UserError without any."""
    from lerobot_serve.tools.operate.robots import robots_report

    with fleet.client() as client:
        if forget:
            client.forget_robots()
        found = client.find_robots()
        if not found:
            raise UserError(client.no_robot_text)
        return robots_report(found)


add_arguments, main = verb_of(robots)
