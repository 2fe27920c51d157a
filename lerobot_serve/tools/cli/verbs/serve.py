# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve serve`: starts a policy server."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.tools.cli.node_flags import NodeArgument, NodeVerb
from lerobot_serve.tools.cli.node_start import verb_of_node

HELP = 'start a policy server'
EXAMPLE = (
    'example: lerobot-serve serve /models/act_so101 --device cuda:0 --max-sessions 8  | '
    'lerobot-serve serve reach, a policy that comes with this package'
)
# the executable handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True


def policy_values(given: str) -> dict[str, str]:
    """Return the parameters of POLICY. Raises UserError."""
    from lerobot_serve.tools.fleet.shipped import policy_of

    return policy_of(given, Path.cwd())


NODE = NodeVerb(
    'policy_server',
    'lerobot_serve.server.parameters:ServerParameters',
    ('policy_kind', 'policy_path', 'device', 'slot', 'max_sessions', 'scheduler'),
    NodeArgument(
        'POLICY',
        'folder of the policy; KIND:PATH, such as lerobot:/models/v2 or '
        'null:joints=6,chunk=30,cameras=,fps=30; a LeRobot policy of the Hugging Face hub, '
        'USER/REPOSITORY[@REVISION]; or a shipped one: reach',
        policy_values,
    ),
)

add_arguments, main = verb_of_node(NODE)
