# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve edge`: starts the edge controller of one robot."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.tools.cli.node_flags import NodeArgument, NodeVerb
from lerobot_serve.tools.cli.node_start import verb_of_node

HELP = 'start the edge controller of a robot'
EXAMPLE = (
    'example: lerobot-serve edge my_arm.yaml --client-id robot_1 --servers /policy_router  | '
    'the namespace is the client_id unless --namespace is given'
)
# the executable handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True


def robot_values(given: str) -> dict[str, str]:
    """Return the parameter of ROBOT. Raises UserError."""
    from lerobot_serve.tools.fleet.shipped import ROBOTS, shipped_or_path

    return {'robot_file': str(shipped_or_path('robot file', given, Path.cwd(), ROBOTS))}


NODE = NodeVerb(
    'edge_controller',
    'lerobot_serve.edge.parameters:EdgeParameters',
    ('client_id', 'servers', 'robot_file', 'network_profile', 'task', 'codec'),
    NodeArgument(
        'ROBOT',
        'YAML file that describes the robot, or a shipped one: sim_arm, so101, ... (sim_arm)',
        robot_values,
    ),
    namespace_of='client_id',
)

add_arguments, main = verb_of_node(NODE)
