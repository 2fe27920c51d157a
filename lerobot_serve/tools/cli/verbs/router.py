# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve router`: starts a policy router, or moves the state of one that is stopped."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from lerobot_serve.entry_points import SIGNALS
from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.node_flags import NodeVerb
from lerobot_serve.tools.cli.node_start import verb_of_node
from lerobot_serve.tools.output.text import without_controls

if TYPE_CHECKING:
    from lerobot_serve.router.parameters import RouterParameters

HELP = 'start a router, which splits episodes between two versions of a policy'
EXAMPLE = (
    'example: lerobot-serve router --slot-a /v1/policy_server --slot-b /v2/policy_server '
    '--split-percent 90'
)
# the executable handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
NODE = NodeVerb(
    'policy_router',
    'lerobot_serve.router.parameters:RouterParameters',
    ('slot_a', 'slot_b', 'slot_prod', 'split_percent', 'shadow_server', 'state_folder'),
)


def move(parameters: RouterParameters, node: str) -> int:
    """copy what this router, which is stopped, has decided into the state that the flags name"""
    import time

    from builtin_interfaces.msg import Time

    from lerobot_serve.router.context import format_local_time, NodeContext
    from lerobot_serve.router.shared_state.opening import move_state
    from lerobot_serve.router.storage.store import StoreRefused
    from lerobot_serve.state_folder import state_path

    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    lines: list[str] = []
    context = NodeContext(
        node, time.monotonic_ns, Time, format_local_time, lines.append, lines.append
    )
    try:
        last, store = move_state(parameters, state_path(parameters.state_folder, node), context)
    except StoreRefused as error:
        raise UserError(str(error)) from None
    found = store.content
    lines.append(
        f'{store.name} has what was decided in {last}, and {len(found.placements)} placements; '
        f'{last} stays as it is'
    )
    print('\n'.join(map(without_controls, lines)))
    return 0


add_arguments, main = verb_of_node(NODE, {'store move': move})
