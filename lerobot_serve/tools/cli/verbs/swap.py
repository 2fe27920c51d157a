# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve swap`: replaces the policy of a running server without a stop."""

from __future__ import annotations

from typing import Annotated

from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.operator_options import Operator
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.output.report import Report

HELP = 'replace the policy of a running server by another one of the same contract'
EXAMPLE = (
    'example: lerobot-serve swap /policy_server pick@0123456789abcdef --wait  '
    f'{operator_options.EXIT_STATUSES}'
)


def server_names(**_: object) -> list[str]:
    return operator_options.live_names(lambda client: client.swap_servers())


def swap(
    server: Annotated[str, Argument('full name of a policy server', 'SERVER', names=server_names)],
    policy: Annotated[
        str,
        Argument(
            'folder below the policy_root of the server, relative to it or absolute; or a version '
            'where policy_root is a store: its id, its name or the first digits of its hash',
            'FOLDER|VERSION',
        ),
    ],
    *,
    wait: Annotated[bool, Argument('return when the new policy serves, or has failed')] = False,
    load_timeout_s: Annotated[
        float, Argument('time limit of --wait [s]', 'S', operator_options.seconds)
    ] = 300.0,
    operator: Operator,
) -> Report:
    """Load the policy; with `wait`, until it serves. Raises UserError, ResultUnknown."""
    from lerobot_serve.tools.operate import swapping
    from lerobot_serve.tools.operate.operations import checked

    with operator.client() as client:
        before = swapping.find_server(client, server)
        rule = swapping.swap_rule(before, policy)
        checked(rule)
        operator.confirm(before.server, rule.text, asks=rule.asks)
        wait_s = load_timeout_s if wait else None
        return swapping.swap(client, before, policy, wait_s=wait_s).report()


add_arguments, main = verb_of(swap)
