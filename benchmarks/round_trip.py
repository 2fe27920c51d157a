# SPDX-License-Identifier: Apache-2.0
"""
One robot asks for a chunk: this package, other projects' clients and servers, a bare rclpy echo of
as many bytes, and the floors of the host, in turn, so that all meet the same machine. Each trip
begins after a rest of no time, and of as long as a robot pauses (`--pauses-ms`).

Every server and every peer's client is a process of its own; this package's client is the
benchmark. A trip runs from the pictures to the chunk as the robot takes it, under a policy that
answers at once. Raw pictures are compared with raw ones, as the peers send nothing else; JPEG
stands beside, with encoder and decoder in its time. LeRobot's server is spared resizing pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
from dataclasses import dataclass
from pathlib import Path
import time

import numpy as np

from benchmarks.harness.client import EchoClient, SERVER, ZenohPolicyClient
from benchmarks.harness.machine import load
from benchmarks.harness.processes import child, module_command, page_faults
from benchmarks.harness.request_session import IMAGE_THREADS
from benchmarks.peers import comparison
from benchmarks.peers.comparison import alternate, DIRECT, DIRECT_JPEG, ECHOES, RoundTripTime
from benchmarks.peers.peer import Peer, start_peers, versions
from benchmarks.peers.peer_process import (
    ImageSet,
    JOINTS,
    JPEG_QUALITY,
    NULL_POLICY,
    policy_frames,
)
from benchmarks.peers.this_package import open_ways, PackageRoundTrip, ros_clients, RosClients
from benchmarks.results.report import Case
from lerobot_serve import client as client_api
from lerobot_serve.errors import UserError
from lerobot_serve.ros.process.node_runtime import NodeRuntime

ABOUT = 'one robot asks for a chunk: this package against its peers, a bare echo and floors'
SIZES = (ImageSet(2, 224, 224), ImageSet(2, 480, 640), ImageSet(3, 720, 1280))
PEERS = {
    comparison.LEROBOT: 'lerobot',
    comparison.LEROBOT_SHAPED: 'lerobot_shaped',
    comparison.OPENPI: 'openpi',
    comparison.PAGE: 'floors.memfd',
    'iceoryx2': 'floors.iceoryx',
    'TCP loopback': 'floors.tcp',
    'bare Zenoh': 'floors.bare_zenoh',
}
PAUSES_MS, LONGEST_MS = '0,10,30', 60_000
WARM_UP_ROUNDS = 10
PARAMETERS = {
    **NULL_POLICY,
    'jpeg_quality': JPEG_QUALITY,
    'image_threads': IMAGE_THREADS,
    'lerobot_inference_latency': 0,
    'warm_up_rounds': WARM_UP_ROUNDS,
    'in_flight': 1,
    'order': 'the ways of this package, the peers, the floors, the echoes; after each pause',
}
# makes one trip; None when it was lost
MakeRoundTrip = Callable[[], RoundTripTime | None]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Who asks and who is asked, whatever the size."""

    clients: RosClients
    echo: EchoClient
    peers: dict[str, Peer]


def measure(rounds: int, folder: Path, pauses_ms: str = PAUSES_MS) -> list[Case]:
    """
    Return cases for each size, and one for each peer left out. Main thread. Raises UserError.
    """
    pauses = parse_pauses(pauses_ms)
    with contextlib.ExitStack() as stack:
        runtime = NodeRuntime([])
        stack.callback(runtime.close)
        clients, echo = ros_clients(runtime), EchoClient(runtime)
        runtime.add(echo)
        runtime.spin_in_background()
        peers, left_out = start_peers(stack, PEERS, 'client', folder)
        met = Endpoints(clients, echo, peers)
        cases = [measure_size(met, size, rounds, pauses, folder) for size in SIZES]
        return [case for of_size in cases for case in of_size] + left_out


def parse_pauses(text: str) -> list[int]:
    """Return how long to rest before a trip [ms]. Raises UserError."""
    pauses = [int(word) if word.isdecimal() else -1 for word in text.split(',')]
    if not all(0 <= pause <= LONGEST_MS for pause in pauses):
        raise UserError(f'--pauses-ms must be numbers in [0, {LONGEST_MS}], got {text!r}')
    return pauses


def measure_size(
    met: Endpoints, size: ImageSet, rounds: int, pauses_ms: Sequence[int], folder: Path
) -> list[Case]:
    """Start the servers, make the rounds, end them. Raises UserError and Refused."""
    load_before = load()
    with contextlib.ExitStack() as stack:
        ours = open_ways(stack, met.clients, size, folder)
        client = {comparison.CLIENT: timed(client_trip(stack, ours[comparison.ZENOH], size))}
        peers = {name: timed(peer_trip(peer, size)) for name, peer in met.peers.items()}
        alternate(ours | client | peers, WARM_UP_ROUNDS)
        if not all(way.path.request_bytes for way in ours.values()):
            raise UserError(f'no trip with {size} pictures was answered; see policy_server.log')
        echo = module_command('harness.echo', ours[DIRECT].path.reply_bytes)
        pids = {
            'server': ours[DIRECT].process.pid,
            'echo': stack.enter_context(child(echo, folder / 'echo.log')).pid,
        }
        met.echo.wait()
        ways = ours | client | peers | echoes(met.echo, ours)
        alternate(ways, WARM_UP_ROUNDS)
        before = {name: page_faults(pid) for name, pid in pids.items()}
        results = alternate(ways, rounds, pauses_ms)
        faults = {
            f'{name}_page_faults': page_faults(pid) - before[name] for name, pid in pids.items()
        }
    facts = {
        'raw_request_bytes': ours[DIRECT].path.request_bytes,
        'jpeg_request_bytes': ours[DIRECT_JPEG].path.request_bytes,
        'reply_bytes': ours[DIRECT].path.reply_bytes,
        **faults,
        'load_before': load_before,
        'load_after': load(),
        **versions(met.peers),
    }
    name = f'{size.cameras} cameras of {size.height}x{size.width}'
    return comparison.cases(name, facts, results)


def echoes(client: EchoClient, ours: Mapping[str, PackageRoundTrip]) -> dict[str, MakeRoundTrip]:
    """Return an echo of as many bytes as were asked with, for each size of request."""
    return {
        echo: timed(client.trip_of(ours[name].path.request_bytes)) for name, echo in ECHOES.items()
    }


def client_trip(
    stack: contextlib.ExitStack, beside: PackageRoundTrip, size: ImageSet
) -> Callable[[], float]:
    """Return a trip of a program with PolicyClient, at the server of another way."""
    assert isinstance(beside.client, ZenohPolicyClient)
    client = stack.enter_context(
        client_api.PolicyClient.connect(SERVER, endpoints=(beside.client.endpoint,))
    )
    session = stack.enter_context(client.open())
    images, state = policy_frames(size), np.zeros(JOINTS, np.float32)

    def trip_ms() -> float:
        begin_ns = time.perf_counter_ns()
        session.predict(state, images)
        return (time.perf_counter_ns() - begin_ns) / 1e6

    return trip_ms


def peer_trip(peer: Peer, size: ImageSet) -> Callable[[], float | None]:
    return lambda: peer.trip_ms(size)


def timed(trip_ms: Callable[[], float | None]) -> MakeRoundTrip:
    """Return the way of what only says how long it took; no codec is in it."""

    def once() -> RoundTripTime | None:
        took_ms = trip_ms()
        return None if took_ms is None else RoundTripTime(took_ms)

    return once
