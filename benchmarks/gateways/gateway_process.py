# SPDX-License-Identifier: Apache-2.0
"""A gateway as a process of its own, before a server with a null policy. Main thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
from pathlib import Path
import subprocess

from benchmarks.harness.client import PolicyClient, SERVER, ZenohPolicyClient
from benchmarks.harness.nodes import running
from benchmarks.harness.processes import child, free_endpoints
from benchmarks.harness.request_session import FPS, RequestSession
from benchmarks.harness.router_process import ROUTER, start_router, start_router_alone
from benchmarks.peers.peer import free_port
from benchmarks.peers.peer_process import (
    Address,
    CHUNK_ROWS,
    frames,
    ImageSet,
    JOINTS,
    wait_until_listening,
)
from lerobot_serve.contract.schema import Codec
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.processes.node_processes import executable_path

LOCALHOST = '127.0.0.1'
SIZES = (ImageSet(1, 240, 256), ImageSet(2, 224, 224), ImageSet(2, 480, 640))
ZENOH, ROS, ROUTED = 'gateway over Zenoh', 'gateway over ROS 2', 'gateway and router over Zenoh'
DIRECT = 'session without a gateway, over Zenoh'
MAPPING = 'mapping.yaml'
# more than the clients of any part
SESSIONS = 64


@dataclass(frozen=True, slots=True)
class Fleet:
    """A server, and a router with another; who listens where over Zenoh."""

    client: PolicyClient
    server: subprocess.Popen
    at_server: str
    at_router: str

    def parameters(self, way: str) -> dict[str, object]:
        """Return the parameters of a gateway on one way."""
        if way == ROS:
            return {'server': SERVER}
        is_routed = way == ROUTED
        at, named = (self.at_router, f'{ROUTER}_zenoh') if is_routed else (self.at_server, SERVER)
        return {'server': named, 'link': 'zenoh', 'zenoh_connect': f"['{at}']"}


@contextlib.contextmanager
def running_fleet(size: ImageSet, folder: Path) -> Iterator[Fleet]:
    """Start server and router. Raises UserError."""
    with contextlib.ExitStack() as stack:
        runtime = NodeRuntime([])
        stack.callback(runtime.close)
        client = PolicyClient(runtime, 'bench')
        runtime.add(client)
        runtime.spin_in_background()
        at_server, at_router, behind = free_endpoints(3)
        policy = policy_parameters(size)
        listening = policy | {'zenoh_listen': [at_server]}
        server = stack.enter_context(running(client, 'policy_server', SERVER, listening, folder))
        start_router(stack, client, ('prod',), policy | {'zenoh_listen': [behind]}, folder)
        start_router_alone(
            stack,
            client,
            ('prod',),
            folder,
            name=f'{ROUTER}_zenoh',
            link='zenoh',
            zenoh_connect=[behind],
            zenoh_listen=[at_router],
        )
        yield Fleet(client, server, at_server, at_router)


def policy_parameters(size: ImageSet) -> dict[str, object]:
    """Return the parameters of a server whose policy answers at once."""
    cameras = '+'.join(f'{name}:{size.height}x{size.width}' for name in frames(size))
    path = f'joints={JOINTS},chunk={CHUNK_ROWS},cameras={cameras},fps={FPS:g}'
    return {'policy_kind': 'null', 'policy_path': path, 'max_sessions': SESSIONS}


@contextlib.contextmanager
def running_gateway(
    fleet: Fleet, way: str, door: str, size: ImageSet, folder: Path
) -> Iterator[Address]:
    """Start a gateway with one door, and give the address of the door. Raises OSError."""
    address = Address(LOCALHOST, free_port())
    mapping = folder / MAPPING
    mapping.write_text(mapping_text(size))
    parameters = fleet.parameters(way) | {
        'doors': f"['{door}']",
        f'{door}.port': address.port,
        f'{door}.mapping': mapping.resolve(),
    }
    name = f'gateway_{door}_{way.replace(" ", "_")}'
    command = [str(executable_path('gateway')), '--ros-args', '-r', f'__node:={name}']
    for key, value in parameters.items():
        command += ['-p', f'{key}:={value}']
    with child(command, folder / f'{name}.log'):
        wait_until_listening(address)
        yield address


@contextlib.contextmanager
def running_mixed_gateway(
    fleet: Fleet, doors: tuple[str, ...], folder: Path
) -> Iterator[dict[str, Address]]:
    """Start a gateway with several doors before the router, and give their addresses."""
    addresses = {door: Address(LOCALHOST, free_port()) for door in doors}
    parameters = fleet.parameters(ROUTED) | {'doors': f'[{", ".join(doors)}]'}
    parameters |= {f'{door}.port': address.port for door, address in addresses.items()}
    if 'lerobot' in doors:
        parameters['lerobot.policy_names'] = "['*']"
    command = [str(executable_path('gateway')), '--ros-args', '-r', '__node:=gateway_mixed']
    for key, value in parameters.items():
        command += ['-p', f'{key}:={value}']
    with child(command, folder / 'gateway_mixed.log'):
        for address in addresses.values():
            wait_until_listening(address)
        yield addresses


def mapping_text(size: ImageSet) -> str:
    """Return the names that the client of the benchmark sends."""
    cameras = ', '.join(f'observation/{name}: observation.images.{name}' for name in frames(size))
    return f'cameras: {{{cameras}}}\nstate: [observation/state]\n'


@contextlib.contextmanager
def direct_session(fleet: Fleet, size: ImageSet) -> Iterator[Callable[[], float | None]]:
    """Open a session without a gateway, and give what makes a trip [ms]; None for a lost one."""
    with contextlib.ExitStack() as stack:
        client = ZenohPolicyClient(fleet.at_server, 'bench_direct', SERVER)
        stack.callback(client.close)
        named = {f'observation.images.{name}': frame for name, frame in frames(size).items()}
        session = RequestSession(client, named, Codec.RAW, 'bench_direct')
        session.open(fleet.server)
        stack.callback(session.close)
        client.wait_until_matched()

        def trip_ms() -> float | None:
            client.chunks.clear()
            trip = session.trip()
            return None if trip is None else trip.total

        yield trip_ms
