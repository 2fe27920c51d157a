# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve split`: sets the share of new episodes for slot a."""

from __future__ import annotations

from typing import Annotated

from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.operator_options import Operator, Reason, RouterName
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.output.report import Report

HELP = 'set the share of new episodes for slot a'
EXAMPLE = f'example: lerobot-serve split 80  {operator_options.EXIT_STATUSES}'


def split(
    percent: Annotated[int, Argument('share of slot a, 0 to 100 [%]', 'PERCENT')],
    *,
    reason: Reason = '',
    router: RouterName = '',
    operator: Operator,
) -> Report:
    """Set the split of the router. Raises UserError, ResultUnknown."""
    from lerobot_serve.tools.operate import operations
    from lerobot_serve.tools.operate.rollout.steering import check_percent, split_rule

    check_percent(percent)
    with operator.client() as client:
        before = operator_options.find_router(client, router)
        found = operator.confirmed(
            client, before, 'split', lambda state: split_rule(state, percent)
        )
        if isinstance(found, Report):
            return found
        return operations.set_split(client, found[0], percent, reason).report()


add_arguments, main = verb_of(split)
