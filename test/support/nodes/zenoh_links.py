# SPDX-License-Identifier: Apache-2.0
"""
The same processes with another link between robots, router and servers: a test that runs over
several starts its nodes as ever. Over Zenoh they get an endpoint each and those of their servers.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from benchmarks.harness.processes import NodeProcesses
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings
from support.network.ports import free_port

both_links = pytest.mark.parametrize('link', ['ros', 'zenoh'])
# over ROS 2 without the local path, over Zenoh, and over ROS 2 with it for robots, too
every_link = pytest.mark.parametrize('link', ['ros_alone', 'zenoh', 'local'])
HAVE_LOCAL = ('policy_server', 'policy_router', 'edge_controller', 'gateway')
NAME = re.compile(r'(?:/[A-Za-z_][A-Za-z0-9_]*)+')
SERVERS = ('slot_a', 'slot_b', 'slot_prod', 'shadow_server', 'servers', 'server')


class ZenohLinks:
    """The endpoints of a test, and its own links to them. The test's thread."""

    def __init__(self) -> None:
        self._endpoints: dict[str, str] = {}
        self._links: dict[str, ZenohLink] = {}

    def endpoint(self, node: str) -> str:
        """Return the endpoint on which a node listens."""
        if node not in self._endpoints:
            self._endpoints[node] = free_endpoint()
        return self._endpoints[node]

    def link(self, node: str) -> ZenohLink:
        """Return a link of the test to a node."""
        if node not in self._links:
            self._links[node] = ZenohLink(ZenohSettings(connect=(self.endpoint(node),)))
        return self._links[node]

    def parameters(
        self, executable: str, namespace: str, given: dict[str, object]
    ) -> dict[str, object]:
        """Return what an executable is given in addition."""
        if executable == 'policy_server':
            return {'zenoh_listen': [self.endpoint(f'{namespace}/policy_server')]}
        if executable not in ('policy_router', 'edge_controller', 'gateway'):
            return {}
        named = ' '.join(str(given[key]) for key in SERVERS if key in given)
        default = 'servers' if executable == 'edge_controller' else ''
        servers = NAME.findall(named) or (['/policy_server'] if default else [])
        more: dict[str, object] = {
            'link': 'zenoh',
            'zenoh_connect': [self.endpoint(server) for server in servers],
        }
        if executable == 'policy_router':
            more['zenoh_listen'] = [self.endpoint(f'{namespace}/policy_router')]
        return more

    def close(self) -> None:
        for link in self._links.values():
            link.close()


class PathProcesses(NodeProcesses):
    """As NodeProcesses; `uses_local` says whether all nodes, or none, use the local path."""

    uses_local: bool

    def start(self, name, executable, **parameters) -> subprocess.Popen[bytes]:
        more = {'local_path': self.uses_local} if executable in HAVE_LOCAL else {}
        return super().start(name, executable, **{**more, **parameters})


class ZenohProcesses(NodeProcesses):
    """As NodeProcesses; `links` has the endpoints."""

    links: ZenohLinks

    def start(self, name, executable, *, namespace='', **parameters) -> subprocess.Popen[bytes]:
        at = f'/{namespace.strip("/")}' if namespace else ''
        more = self.links.parameters(executable, at, parameters)
        return super().start(name, executable, namespace=namespace, **{**more, **parameters})


def free_endpoint() -> str:
    return f'tcp/127.0.0.1:{free_port()}'
