# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve gateway`: starts a gateway for clients of other protocols."""

from __future__ import annotations

from lerobot_serve.tools.cli.node_flags import NodeVerb
from lerobot_serve.tools.cli.node_start import verb_of_node

HELP = 'start a gateway, so that clients of LeRobot, openpi, GR00T and HTTP use a router'
EXAMPLE = (
    'example: lerobot-serve gateway --doors lerobot --server /policy_router  | a client connects '
    'to 127.0.0.1:8702 as to its own server; it has no safety cage: only an edge has one'
)
# the executable handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
NODE = NodeVerb(
    'gateway',
    'lerobot_serve.gateway.parameters:GatewayParameters',
    ('doors', 'server', 'max_callers', 'request_timeout_s', 'codec'),
)

add_arguments, main = verb_of_node(NODE)
