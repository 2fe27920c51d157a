# SPDX-License-Identifier: Apache-2.0
"""This package as one that is compared: its ways to a chunk, and the nodes behind them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
import subprocess

from benchmarks.harness.client import ANSWER_TIMEOUT_S, PolicyClient, SERVER, ZenohPolicyClient
from benchmarks.harness.nodes import running
from benchmarks.harness.processes import free_endpoints
from benchmarks.harness.request_session import IMAGE_THREADS, RequestSession
from benchmarks.harness.router_process import null_policy, ROUTER, start_router_alone
from benchmarks.peers import comparison
from benchmarks.peers.comparison import RoundTripTime
from benchmarks.peers.peer_process import frames, ImageSet, policy_frames, Way
from lerobot_serve.contract.schema import Codec
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime

ZENOH_ROUTER = f'{ROUTER}_zenoh'


# another link is a line here, and a node that offers it one in `start_nodes`
WAYS = {
    comparison.DIRECT: Way(SERVER),
    comparison.DIRECT_JPEG: Way(SERVER, Codec.JPEG),
    comparison.ROUTED: Way(ROUTER),
    comparison.ROUTED_JPEG: Way(ROUTER, Codec.JPEG),
    comparison.ZENOH: Way(SERVER, over_zenoh=True),
    comparison.ZENOH_JPEG: Way(SERVER, Codec.JPEG, over_zenoh=True),
    comparison.ZENOH_ROUTED: Way(ZENOH_ROUTER, over_zenoh=True),
    comparison.LOCAL: Way(SERVER, uses_local=True),
    comparison.LOCAL_ROUTED: Way(ROUTER, uses_local=True),
}
# way -> its client
RosClients = dict[str, PolicyClient]


@dataclass(frozen=True, slots=True)
class Node:
    """A server or router that runs, and where it listens for Zenoh."""

    process: subprocess.Popen | None
    endpoint: str = ''


@dataclass(frozen=True, slots=True)
class PackageRoundTrip:
    """A session with a server of this package, or with a router."""

    client: PolicyClient | ZenohPolicyClient
    path: RequestSession
    process: subprocess.Popen

    def __call__(self) -> RoundTripTime | None:
        """Make one trip. Raises UserError."""
        self.client.chunks.clear()
        return self.path.trip()


def ros_clients(runtime: NodeRuntime) -> RosClients:
    """Return a client for each way over ROS 2. Before the runtime spins."""
    clients = {
        name: PolicyClient(
            runtime, f'bench_{node_name(name)}', way.server, uses_local=way.uses_local
        )
        for name, way in WAYS.items()
        if not way.over_zenoh
    }
    for client in clients.values():
        runtime.add(client)
    return clients


def open_ways(
    stack: contextlib.ExitStack, clients: RosClients, size: ImageSet, folder: Path
) -> dict[str, PackageRoundTrip]:
    """Start the nodes, and open a session for each way. Main thread. Raises UserError, Refused."""
    nodes = start_nodes(stack, clients[comparison.DIRECT], policy_parameters(size), folder)
    return {
        name: open_way(stack, node_name(name), way, nodes[way.server], size, clients.get(name))
        for name, way in WAYS.items()
    }


def open_way(
    stack: contextlib.ExitStack,
    client_id: str,
    way: Way,
    node: Node,
    size: ImageSet,
    ros_client: PolicyClient | None = None,
    answer_s: float = ANSWER_TIMEOUT_S,
) -> PackageRoundTrip:
    """Open a session, over ROS 2 with the client that is given. Raises UserError and Refused."""
    client: PolicyClient | ZenohPolicyClient
    if ros_client:
        client = ros_client
    else:
        client = ZenohPolicyClient(node.endpoint, client_id, way.server, answer_s)
        stack.callback(client.close)
    path = RequestSession(
        client,
        policy_frames(size),
        way.codec,
        client_id,
        quality=way.quality,
        fitted=(way.height, way.width),
    )
    path.open(node.process)
    stack.callback(path.close)
    client.wait_until_matched()
    return PackageRoundTrip(client, path, node.process)


def start_nodes(
    stack: contextlib.ExitStack, client: SteadyClockNode, policy: dict[str, object], folder: Path
) -> dict[str, Node]:
    """Start the nodes that the ways ask; the routers have the same server. Raises UserError."""
    at_server, at_router, behind_routers = free_endpoints(3)

    def server(name: str, endpoint: str, **more: object) -> Node:
        parameters = policy | listen(endpoint) | more
        process = running(client, 'policy_server', name, parameters, folder)
        return Node(stack.enter_context(process), endpoint)

    def router(name: str, endpoint: str = '', **more: object) -> Node:
        process = start_router_alone(stack, client, ('prod',), folder, name=name, **more)
        return Node(process, endpoint)

    over_zenoh = {'link': 'zenoh', 'zenoh_connect': [behind_routers], **listen(at_router)}
    server('/server_prod', behind_routers, slot='prod')
    return {
        SERVER: server(SERVER, at_server),
        ROUTER: router(ROUTER),
        ZENOH_ROUTER: router(ZENOH_ROUTER, at_router, **over_zenoh),
    }


def node_name(way: str) -> str:
    return way.replace(' ', '_')


def listen(endpoint: str) -> dict[str, object]:
    """Return the parameter of a node that listens on an endpoint."""
    return {'zenoh_listen': [endpoint]}


def policy_parameters(size: ImageSet) -> dict[str, object]:
    """Return the parameters of a server whose policy answers at once."""
    cameras = '+'.join(f'{name}:{size.height}x{size.width}' for name in frames(size))
    return null_policy(cameras) | {'image_threads': IMAGE_THREADS}
