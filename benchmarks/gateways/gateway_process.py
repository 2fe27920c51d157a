# SPDX-License-Identifier: Apache-2.0
"""A gateway as a process of its own, before servers with a null policy. Main thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.client import SERVER
from benchmarks.harness.nodes import spinning_node
from benchmarks.harness.processes import child, node_command
from benchmarks.peers.peer import free_address
from benchmarks.peers.peer_process import Address, ImageSet, wait_until_listening
from benchmarks.peers.this_package import Node, policy_parameters, start_nodes, ZENOH_ROUTER

ZENOH, ROS, ROUTED = 'gateway over Zenoh', 'gateway over ROS 2', 'gateway and router over Zenoh'
# more than the clients of any part
SESSIONS = 64


@dataclass(frozen=True, slots=True)
class Fleet:
    """Servers and routers, by name."""

    size: ImageSet
    nodes: dict[str, Node]

    def parameters(self, way: str) -> dict[str, object]:
        """Return the parameters of a gateway on one way."""
        if way == ROS:
            return {'server': SERVER}
        server = ZENOH_ROUTER if way == ROUTED else SERVER
        at = self.nodes[server].endpoint
        return {'server': server, 'link': 'zenoh', 'zenoh_connect': f"['{at}']"}


@contextlib.contextmanager
def running_fleet(size: ImageSet, folder: Path) -> Iterator[Fleet]:
    """Start servers and routers. Raises UserError."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(spinning_node('bench'))
        policy = policy_parameters(size) | {'max_sessions': SESSIONS}
        yield Fleet(size, start_nodes(stack, client, policy, folder))


@contextlib.contextmanager
def running_gateway(
    fleet: Fleet, way: str, doors: Sequence[str], folder: Path, **more: object
) -> Iterator[dict[str, Address]]:
    """Start a gateway, with `more` parameters, and give each door's address. Raises OSError."""
    addresses = {door: free_address() for door in doors}
    parameters = fleet.parameters(way) | {'doors': f'[{", ".join(doors)}]'} | more
    parameters |= {f'{door}.port': address.port for door, address in addresses.items()}
    if 'lerobot' in doors:
        parameters['lerobot.policy_names'] = "['*']"
    name = f'gateway_{way.replace(" ", "_")}'
    with child(node_command('gateway', parameters, name), folder / f'{name}.log'):
        for address in addresses.values():
            wait_until_listening(address)
        yield addresses
