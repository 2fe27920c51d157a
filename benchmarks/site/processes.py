# SPDX-License-Identifier: Apache-2.0
"""
Several routers of a site that share their state, and the policy servers of both slots, all with
the null policy, over ROS 2 or Zenoh. Main thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
import tempfile

from rclpy.node import Node

from benchmarks.harness.nodes import running
from benchmarks.harness.processes import free_endpoints
from benchmarks.harness.router_process import POLICY
from lerobot_serve.contract.names import OVER_ZENOH

ROS, ZENOH = LINKS = 'ros', 'zenoh'
SLOTS = ('a', 'b')


@dataclass(frozen=True, slots=True)
class SiteLayout:
    """
    Names and addresses: of the routers, and of the servers of each slot. `endpoints` has one for
    each of them over Zenoh, and is empty over ROS 2.
    """

    routers: tuple[str, ...]
    slots: Mapping[str, tuple[str, ...]]
    endpoints: Mapping[str, str] = field(default_factory=dict)

    @property
    def servers(self) -> dict[str, str]:
        """Return the slot of each server."""
        return {name: slot for slot, names in self.slots.items() for name in names}

    def listening(self, name: str) -> dict[str, object]:
        """Return the parameters of a process that others connect to."""
        return {'zenoh_listen': [self.endpoints[name]]} if self.endpoints else {}

    def server_parameters(self, name: str) -> dict[str, object]:
        return {'slot': self.servers[name], **self.listening(name)}

    def router_parameters(self, name: str) -> dict[str, object]:
        prefix = OVER_ZENOH if self.endpoints else ''
        parameters: dict[str, object] = {
            f'slot_{slot}': [f'{prefix}{server}' for server in names]
            for slot, names in self.slots.items()
        }
        if self.endpoints:
            parameters['zenoh_connect'] = [self.endpoints[server] for server in self.servers]
        return parameters | self.listening(name)


def site_layout(link: str, routers: int = 2, replicas: int = 2) -> SiteLayout:
    """Return the names of so many routers, and of so many servers in each slot."""
    names = tuple(f'/router_{number}' for number in range(1, routers + 1))
    slots = {slot: tuple(f'/server_{slot}{n}' for n in range(1, replicas + 1)) for slot in SLOTS}
    listening = [*names, *(server for servers in slots.values() for server in servers)]
    endpoints = free_endpoints(len(listening)) if link == ZENOH else []
    return SiteLayout(names, slots, dict(zip(listening, endpoints, strict=False)))


def start_site(
    stack: contextlib.ExitStack,
    node: Node,
    layout: SiteLayout,
    state_url: str,
    max_sessions: int,
    folder: Path,
    under: Sequence[str] = (),
) -> tuple[list[int], list[int]]:
    """
    Start servers and routers, and return their process ids. `under` is a command that runs the
    first router; the executor of `node` spins. Raises UserError.
    """
    policy = POLICY | {'max_sessions': max_sessions}
    servers = [
        stack.enter_context(
            running(node, 'policy_server', name, policy | layout.server_parameters(name), folder)
        )
        for name in layout.servers
    ]
    routers = []
    for name in layout.routers:
        # what a router of an earlier run remembers must not matter
        state = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
        parameters = layout.router_parameters(name)
        parameters |= {'state_folder': state, 'state_url': state_url, 'state_site': 'bench'}
        first = () if routers else under
        routers.append(
            stack.enter_context(running(node, 'policy_router', name, parameters, folder, first))
        )
    return [each.pid for each in routers], [each.pid for each in servers]
