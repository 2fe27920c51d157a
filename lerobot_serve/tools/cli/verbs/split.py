# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve split`: sets the share of new episodes for slot a."""

from __future__ import annotations

from typing import Annotated

from lerobot_serve.tools.cli.operator_options import EXIT_STATUSES, Operator, Reason, RouterName
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.output.report import Report

HELP = 'set the share of new episodes for slot a'
EXAMPLE = f'example: lerobot-serve split 80  {EXIT_STATUSES}'


def split(
    percent: Annotated[int, Argument('share of slot a, 0 to 100 [%]', 'PERCENT', bounds=(0, 100))],
    *,
    reason: Reason = '',
    router: RouterName = '',
    operator: Operator,
) -> Report:
    """Set the split of the router. Raises UserError, ResultUnknown."""
    from lerobot_serve.tools.operate import operations
    from lerobot_serve.tools.operate.rollout.steering import split_rule

    return operator.on_router(
        router,
        'split',
        lambda _, state: split_rule(state, percent),
        lambda client, now, _: operations.set_split(client, now, percent, reason).report(),
    )


add_arguments, main = verb_of(split)
