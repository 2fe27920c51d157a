# SPDX-License-Identifier: Apache-2.0
"""
One robot asks for a chunk: this package, LeRobot's async server, openpi's client and server, and a
bare rclpy echo of as many bytes, in turn, so that all meet the same machine.

Every server and every peer's client is a process of its own; this package's client is the
benchmark. A trip runs from the pictures to the chunk as the robot takes it, under a policy that
answers at once. Raw pictures are compared with raw ones, as the peers send nothing else; JPEG
stands beside, with encoder and decoder in its time. LeRobot's server is spared resizing pictures.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import dataclass
import os
from pathlib import Path

from benchmarks.harness.client import BenchClient, echo_ms, PolicyClient, SERVER, ZenohPolicyClient
from benchmarks.harness.nodes import running
from benchmarks.harness.processes import child, free_endpoints, module_command
from benchmarks.harness.request_session import FPS, IMAGE_THREADS, JPEG_QUALITY, RequestSession
from benchmarks.harness.router_process import ROUTER, start_router, start_router_alone
from benchmarks.peers import comparison
from benchmarks.peers.comparison import DIRECT, DIRECT_JPEG, FLOORS, Results, RoundTripTime
from benchmarks.peers.peer import Peer, running_peer
from benchmarks.peers.peer_process import CHUNK_ROWS, frames, ImageSet, JOINTS
from benchmarks.peers.pinned_packages import install, PeerUnavailable
from benchmarks.results.report import Case
from lerobot_serve.contract.cdr import ENCAPSULATION
from lerobot_serve.contract.schema import Codec
from lerobot_serve.errors import UserError
from lerobot_serve.ros.process.node_runtime import NodeRuntime

ABOUT = 'one robot asks for a chunk: this package against its peers and a bare echo'
SIZES = (ImageSet(2, 224, 224), ImageSet(2, 480, 640), ImageSet(3, 720, 1280))
PEERS = {comparison.LEROBOT: 'lerobot', comparison.OPENPI: 'openpi'}
WARM_UP_ROUNDS = 10
PARAMETERS = {
    'state': JOINTS,
    'chunk': f'{CHUNK_ROWS}x{JOINTS}',
    'policy': 'null',
    'jpeg_quality': JPEG_QUALITY,
    'image_threads': IMAGE_THREADS,
    'lerobot_inference_latency': 0,
    'warm_up_rounds': WARM_UP_ROUNDS,
    'in_flight': 1,
    'order': 'direct raw, direct JPEG, router raw, router JPEG, the peers, the echoes, and again',
}
# makes one trip; None when it was lost
MakeRoundTrip = Callable[[], RoundTripTime | None]


@dataclass(frozen=True, slots=True)
class PackageRoundTrip:
    """A session with a server of this package, or with a router."""

    client: PolicyClient | ZenohPolicyClient
    path: RequestSession
    codec: Codec

    def __call__(self) -> RoundTripTime | None:
        """Make one trip. Raises UserError."""
        self.client.chunks.clear()
        trip = self.path.trip()
        if trip is None:
            return None
        decode_ms = trip.server_processing if self.codec == Codec.JPEG else 0.0
        return RoundTripTime(trip.total, trip.image_encode + decode_ms)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Who asks and who is asked, whatever the size; a client for each session over ROS 2."""

    direct: BenchClient
    direct_jpeg: PolicyClient
    routed: PolicyClient
    routed_jpeg: PolicyClient
    peers: dict[str, Peer]


def measure(rounds: int, folder: Path) -> list[Case]:
    """
    Return one case for each size, and one for each peer left out. Main thread. Raises UserError.
    """
    with contextlib.ExitStack() as stack:
        runtime = NodeRuntime([])
        stack.callback(runtime.close)
        clients = (
            BenchClient(runtime),
            PolicyClient(runtime, 'bench_jpeg'),
            PolicyClient(runtime, 'bench_routed', ROUTER),
            PolicyClient(runtime, 'bench_routed_jpeg', ROUTER),
        )
        for client in clients:
            runtime.add(client)
        runtime.spin_in_background()
        peers, left_out = start_peers(stack, 'client', folder)
        met = Endpoints(*clients, peers)
        return [measure_case(met, size, rounds, folder) for size in SIZES] + left_out


def start_peers(
    stack: contextlib.ExitStack, role: str, folder: Path
) -> tuple[dict[str, Peer], list[Case]]:
    """Return the peers that could be started, and a case in words for each of the others."""
    peers, left_out = {}, []
    for name, peer in PEERS.items():
        try:
            packages = install(peer, folder / 'peers')
            peers[name] = stack.enter_context(running_peer(peer, packages, folder, role=role))
        except PeerUnavailable as reason:
            left_out.append(Case(f'{name} left out', {'reason': str(reason)}))
    return peers, left_out


def measure_case(met: Endpoints, size: ImageSet, rounds: int, folder: Path) -> Case:
    """Start the servers, make the rounds, end them. Raises UserError and Refused."""
    load_before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        ours = open_ours(stack, met, size, folder)
        peers = {name: timed(peer_trip(peer, size)) for name, peer in met.peers.items()}
        alternate(ours | peers, WARM_UP_ROUNDS)
        if not all(way.path.request_bytes for way in ours.values()):
            raise UserError(f'no trip with {size} pictures was answered; see policy_server.log')
        # as many bytes as were asked with
        ways = ours | peers | start_echo(stack, met.direct, ours, folder)
        alternate(ways, WARM_UP_ROUNDS)
        results = alternate(ways, rounds)
    raw, jpeg = ours[DIRECT].path, ours[DIRECT_JPEG].path
    facts = {
        'raw_request_bytes': raw.request_bytes,
        'jpeg_request_bytes': jpeg.request_bytes,
        'reply_bytes': raw.reply_bytes,
        'load_before': round(load_before, 2),
        'load_after': round(os.getloadavg()[0], 2),
        **versions(met.peers),
    }
    name = f'{size.cameras} cameras of {size.height}x{size.width}'
    return comparison.describe(name, facts, results)


def open_ours(
    stack: contextlib.ExitStack, met: Endpoints, size: ImageSet, folder: Path
) -> dict[str, PackageRoundTrip]:
    """Start a server and a router with another, and open a session for each way and codec."""
    policy = policy_parameters(size)
    at_server, at_router, behind_router = free_endpoints(3)
    server = stack.enter_context(
        running(met.direct, 'policy_server', SERVER, policy | listen(at_server), folder)
    )
    router = start_router(stack, met.routed, ('prod',), policy | listen(behind_router), folder)
    over_zenoh = start_router_alone(
        stack,
        met.routed,
        ('prod',),
        folder,
        name=f'{ROUTER}_zenoh',
        link='zenoh',
        zenoh_connect=[behind_router],
        **listen(at_router),
    )
    named = {f'observation.images.{name}': frame for name, frame in frames(size).items()}
    ours = {}
    for name, client, process, codec in (
        (DIRECT, met.direct, server, Codec.RAW),
        (DIRECT_JPEG, met.direct_jpeg, server, Codec.JPEG),
        (comparison.ROUTED, met.routed, router, Codec.RAW),
        (comparison.ROUTED_JPEG, met.routed_jpeg, router, Codec.JPEG),
        (comparison.ZENOH, (at_server, SERVER), server, Codec.RAW),
        (comparison.ZENOH_JPEG, (at_server, SERVER), server, Codec.JPEG),
        (comparison.ZENOH_ROUTED, (at_router, f'{ROUTER}_zenoh'), over_zenoh, Codec.RAW),
    ):
        if isinstance(client, tuple):
            endpoint, served = client
            client = ZenohPolicyClient(endpoint, name.replace(' ', '_'), served)
            stack.callback(client.close)
        path = RequestSession(client, named, codec, name.replace(' ', '_'))
        path.open(process)
        stack.callback(path.close)
        client.wait_until_matched()
        ours[name] = PackageRoundTrip(client, path, codec)
    return ours


def listen(endpoint: str) -> dict[str, object]:
    """Return the parameter of a node that listens on an endpoint."""
    return {'zenoh_listen': [endpoint]}


def policy_parameters(size: ImageSet) -> dict[str, object]:
    """Return the parameters of a server whose policy answers at once."""
    cameras = '+'.join(f'{name}:{size.height}x{size.width}' for name in frames(size))
    return {
        'policy_kind': 'null',
        'policy_path': f'joints={JOINTS},chunk={CHUNK_ROWS},cameras={cameras},fps={FPS:g}',
        'image_threads': IMAGE_THREADS,
    }


def start_echo(
    stack: contextlib.ExitStack,
    client: BenchClient,
    ours: dict[str, PackageRoundTrip],
    folder: Path,
) -> dict[str, MakeRoundTrip]:
    """Start the echo, and return the way to it for each size of request. Raises UserError."""
    echo = module_command('harness.echo', ours[DIRECT].path.reply_bytes)
    stack.enter_context(child(echo, folder / 'echo.log'))
    client.wait_for_echo()
    return {
        floor: timed(echo_trip(client, ours[name].path.request_bytes))
        for name, floor in FLOORS.items()
    }


def echo_trip(client: BenchClient, size_bytes: int) -> Callable[[], float | None]:
    raw = ENCAPSULATION + bytes(size_bytes - len(ENCAPSULATION))

    def trip_ms() -> float | None:
        client.echoes.clear()
        return echo_ms(client, raw)

    return trip_ms


def peer_trip(peer: Peer, size: ImageSet) -> Callable[[], float | None]:
    return lambda: peer.trip_ms(size)


def timed(trip_ms: Callable[[], float | None]) -> MakeRoundTrip:
    """Return the way of what only says how long it took; no codec is in it."""

    def once() -> RoundTripTime | None:
        took_ms = trip_ms()
        return None if took_ms is None else RoundTripTime(took_ms)

    return once


def alternate(ways: dict[str, MakeRoundTrip], rounds: int) -> Results:
    """Make the rounds, one trip on each way. Raises UserError."""
    results: Results = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            results[name].append(way())
    return results


def versions(peers: dict[str, Peer]) -> dict[str, str]:
    """Return what the peers said they run."""
    return {name: said for peer in peers.values() for name, said in peer.versions.items()}
