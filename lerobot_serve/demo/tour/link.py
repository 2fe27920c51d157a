# SPDX-License-Identifier: Apache-2.0
"""The link between robots, router and servers of the demo: ROS 2, or Zenoh on the loopback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
import socket

from lerobot_serve.contract.names import OVER_ZENOH

ROS, ZENOH = LINKS = 'ros', 'zenoh'
LOOPBACK = '127.0.0.1'


@dataclass(frozen=True, slots=True)
class DemoLink:
    """
    The parameters of the link; `endpoints` maps processes to the Zenoh endpoints that they listen
    on, and is empty over ROS 2. Any thread.
    """

    endpoints: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ZENOH if self.endpoints else ROS

    def server_name(self, node: str) -> str:
        """Return how the router names a server."""
        return f'{OVER_ZENOH}{node}' if self.endpoints else node

    def listening(self, process: str) -> dict[str, list[str]]:
        """Return the parameters of a process that others connect to."""
        return self._parameter('zenoh_listen', [process])

    def connecting(self, processes: Iterable[str]) -> dict[str, list[str]]:
        """Return the parameters of a process that connects to others."""
        return self._parameter('zenoh_connect', processes)

    def robot_parameters(self, router: str) -> dict[str, str | list[str]]:
        """Return the parameters of an edge that reaches its servers through the router."""
        return {'link': ZENOH, **self.connecting([router])} if self.endpoints else {}

    def _parameter(self, name: str, processes: Iterable[str]) -> dict[str, list[str]]:
        if not self.endpoints:
            return {}
        return {name: [self.endpoints[process] for process in processes]}


def zenoh_link(processes: Iterable[str]) -> DemoLink:
    """Return a link over Zenoh, with a free TCP port of this machine for each process."""
    endpoints = {}
    with ExitStack() as held:
        # all at once, so that no two get the same port
        for process in processes:
            found = held.enter_context(socket.socket())
            found.bind((LOOPBACK, 0))
            endpoints[process] = f'tcp/{LOOPBACK}:{found.getsockname()[1]}'
    return DemoLink(endpoints)
