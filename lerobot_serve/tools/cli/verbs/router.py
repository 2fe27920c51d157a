# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve router`: starts a policy router."""

from __future__ import annotations

from lerobot_serve.tools.cli.node_flags import NodeVerb
from lerobot_serve.tools.cli.node_start import verb_of_node

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

add_arguments, main = verb_of_node(NODE)
