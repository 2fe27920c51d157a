# SPDX-License-Identifier: Apache-2.0
"""The nodes, slots and versions of the demo by name. Plain; any thread."""

from __future__ import annotations

ROUTER, LEARNER = '/policy_router', '/learner'
ROBOTS_LIMIT = 20
# version -> its folder in config/policies; `reach` is also the default of a server
VERSIONS = {'v1': 'reach_v1', 'v2': 'reach', 'v3': 'reach_v3'}
CHAMPIONS = ('a1', 'a2')
CANDIDATE, SHADOW = 'b1', 'shadow'
SERVERS = (*CHAMPIONS, CANDIDATE, SHADOW)
ROUTER_PROCESS = 'router'
# those that others connect to
LISTENING = (*SERVERS, ROUTER_PROCESS)
# folder of the router and the robots, beside that of the traces
STATE = 'state'


def robot_names(count: int) -> list[str]:
    return [f'robot_{number + 1}' for number in range(count)]


def server_node_name(name: str) -> str:
    """Return the full name of a server's node."""
    return f'/{name}/policy_server'
