# SPDX-License-Identifier: Apache-2.0
"""
What the real data path costs over a bare echo of the same bytes.

One request is in flight at a time; real requests and echoes alternate, so that both meet the same
machine. Apart from the codec means without the client's image encoder and, for JPEG, without what
the server reports as processing (decoding the images, and some 0.1 ms of checks).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
import time

from benchmarks.harness.camera_images import camera_images
from benchmarks.harness.client import BenchClient, echo_ms, READY_TIMEOUT_S
from benchmarks.harness.processes import child, module_command, page_faults
from benchmarks.harness.request_session import (
    JPEG_QUALITY,
    RequestSession,
    RoundTrip,
    server_parameters,
)
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.contract.cdr import ENCAPSULATION
from lerobot_serve.contract.schema import Codec
from lerobot_serve.errors import UserError
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.processes.node_processes import executable_path

ABOUT = 'round trip of a null policy against a bare rclpy echo of the same bytes'
SIZES = ((224, 224), (480, 640))
CHUNK_ROWS = 100
WARM_UP_ROUNDS = 20
GOAL = 1.5
PARAMETERS = {
    'cameras': 2,
    'jpeg_quality': JPEG_QUALITY,
    'chunk_rows': CHUNK_ROWS,
    'warm_up_rounds': WARM_UP_ROUNDS,
    'in_flight': 1,
    'order': 'real, echo, real, echo, ...',
}


@dataclass(frozen=True, slots=True)
class Run:
    """What was answered, and the page faults of both servers in the measured rounds."""

    trips: list[RoundTrip]
    echoes_ms: list[float]
    page_faults: dict[str, int]


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each picture size and codec. Main thread. Raises UserError."""
    runtime = NodeRuntime([])
    try:
        client = BenchClient(runtime)
        runtime.add(client)
        runtime.spin_in_background()
        return [
            measure_case(client, height, width, codec, rounds, folder)
            for height, width in SIZES
            for codec in (Codec.RAW, Codec.JPEG)
        ]
    finally:
        runtime.close()


def measure_case(
    client: BenchClient, height: int, width: int, codec: Codec, rounds: int, folder: Path
) -> Case:
    """Start the two servers, measure, end them. Raises UserError."""
    command = [
        str(executable_path('policy_server')),
        *server_parameters(height, width, CHUNK_ROWS),
    ]
    path = RequestSession(client, camera_images(height, width), codec)
    with child(command, folder / 'policy_server.log') as server:
        path.open(server)
        try:
            warm_up(client, path)
            with child(
                module_command('harness.echo', path.reply_bytes), folder / 'echo.log'
            ) as echo:
                client.wait_for_echo()
                pids = {'server': server.pid, 'echo': echo.pid}
                run = alternate(client, path, rounds, pids)
        finally:
            path.close()
    name = f'{height}x{width} {codec.name.lower()}'
    return describe(name, path, run, rounds, codec)


def warm_up(client: BenchClient, path: RequestSession) -> None:
    """Make trips until enough have succeeded. Raises UserError."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    done = 0
    while done < WARM_UP_ROUNDS:
        if time.monotonic() > deadline:
            raise UserError(f'{done} of {WARM_UP_ROUNDS} warm-up requests were answered')
        done += path.trip() is not None
        client.chunks.clear()


def alternate(client: BenchClient, path: RequestSession, rounds: int, pids: dict[str, int]) -> Run:
    """Make the rounds, one real request and one echo each."""
    request = ENCAPSULATION + bytes(path.request_bytes - len(ENCAPSULATION))
    for _ in range(WARM_UP_ROUNDS):
        echo_ms(client, request)
    trips, echoes_ms = [], []
    before = {name: page_faults(pid) for name, pid in pids.items()}
    for _ in range(rounds):
        client.chunks.clear()
        client.echoes.clear()
        trips.append(path.trip())
        echoes_ms.append(echo_ms(client, request))
    return Run(
        [t for t in trips if t is not None],
        [e for e in echoes_ms if e is not None],
        {f'{name}_page_faults': page_faults(pid) - before[name] for name, pid in pids.items()},
    )


def describe(name: str, path: RequestSession, run: Run, rounds: int, codec: Codec) -> Case:
    """Return the case with its ratios and whether the goal is met."""
    trips, echoes_ms = run.trips, run.echoes_ms
    jpeg = codec == Codec.JPEG
    apart_ms = [t.total - t.image_encode - jpeg * t.server_processing for t in trips]
    parts = {f.name: [getattr(t, f.name) for t in trips] for f in fields(RoundTrip)}
    to_echo = ratio(apart_ms, echoes_ms)
    return Case(
        name,
        parameters={'request_bytes': path.request_bytes, 'reply_bytes': path.reply_bytes},
        counts={
            'rounds': rounds,
            'lost': rounds - len(trips),
            'echoes_lost': rounds - len(echoes_ms),
            **run.page_faults,
        },
        series_ms={
            'echo': echoes_ms,
            'apart_from_codec': apart_ms,
            'network': [t.network for t in trips],
            **parts,
        },
        ratios={
            'apart_from_codec/echo': to_echo,
            'total/echo': ratio(parts['total'], echoes_ms),
        },
        goals={
            f'apart from the codec at most {GOAL} x the echo (median)': bool(to_echo)
            and to_echo['median'] <= GOAL
        },
    )
