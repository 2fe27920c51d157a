# SPDX-License-Identifier: Apache-2.0
"""
What the router's thinking costs: one request and its answer through the dispatcher, without ROS.

Three hundred robots in two slots of two replicas take turns; a request has the size of two camera
images, a chunk that of 50 rows. Publishing costs nothing here: the bytes are only handed over. The
goal is of CPU time, which a busy machine does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import tempfile
import time

import numpy as np

from benchmarks.results.percentiles import microseconds
from benchmarks.results.report import Case
from benchmarks.router_cpu.placement import writing
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import execution_report as wire_executed
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import OpenSessionRequest, ServerStatus
from lerobot_serve.contract.schema import Codec, Flag, MsgType, Status
from lerobot_serve.router.data_path.dispatcher import Dispatcher
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.data_path.request_observer import RequestObserver
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.placement_table import PlacementTable
from lerobot_serve.router.replicas.slot_stats import SlotStats
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.storage.writer import StoreWriter
from lerobot_serve.telemetry.durations import summarize

ABOUT = 'one request and its answer through the dispatcher of the router'
ROBOTS, JOINTS, ROWS, IMAGE_BYTES, EPISODE_REQUESTS = 300, 14, 50, 90_000, 50
REQUESTS_A_ROUND = 50
SLOTS = {'a': ('/a1', '/a2'), 'b': ('/b1', '/b2')}
CAPACITY = 10_000
SECOND = 1_000_000_000
GOAL_P99_MS = 1.0
PARAMETERS = {
    'robots': ROBOTS,
    'image_bytes': 2 * IMAGE_BYTES,
    'chunk': f'{ROWS} x {JOINTS}',
    'requests_a_round': REQUESTS_A_ROUND,
}


class HandedOver:
    """A ReplicaTransport that keeps the last request, and drops replies."""

    def __init__(self) -> None:
        self.server, self.raw = '', b''

    def send(self, server: str, raw: bytes) -> None:
        self.server, self.raw = server, raw

    def reply(self, session: ClientSession, raw: bytes) -> None: ...

    def fail(
        self, request: InFlightRequest, status: Status, text: str, retry_after_s: float = 0.0
    ) -> None: ...

    def refuse_unknown(self, header: Header, client_id: str, episode_id: str) -> None: ...


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case. Main thread."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch, writing(Path(scratch)) as writer:
        return [measure_round_trips(rounds * REQUESTS_A_ROUND, writer)]


def measure_round_trips(count: int, writer: StoreWriter) -> Case:
    """Let the robots ask in turn; each is answered at once."""
    outside = HandedOver()
    dispatcher, stats = make(outside, writer)
    series_ms: dict[str, list[float]] = {'request': [], 'answer': [], 'both, CPU': []}
    size = 0
    for number in range(count):
        raw = request_of(number)
        size = len(raw)
        request_ms, request_cpu_ms = timed(dispatcher.on_request, raw, time.monotonic_ns())
        server = outside.server
        chunk = answer_to(number, server[1])
        answer_ms, answer_cpu_ms = timed(dispatcher.on_reply, server, chunk, time.monotonic_ns())
        series_ms['request'].append(request_ms)
        series_ms['answer'].append(answer_ms)
        series_ms['both, CPU'].append(request_cpu_ms + answer_cpu_ms)
    p99_ms = summarize(series_ms['both, CPU'])['p99']
    return Case(
        f'{ROBOTS} robots',
        parameters=microseconds(series_ms),
        counts={
            'requests': count,
            'answers': sum(stats.slot(name).chunks for name in SLOTS),
            'request_bytes': size,
        },
        series_ms=series_ms,
        goals={f'p99 of the CPU time of both under {GOAL_P99_MS:g} ms': p99_ms < GOAL_P99_MS},
    )


def timed(act: Callable[..., None], *arguments: object) -> tuple[float, float]:
    """Return how long it took, and how much of that this thread was at work [ms]."""
    begin_ns, begin_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
    act(*arguments)
    cpu_ns, wall_ns = time.thread_time_ns() - begin_cpu_ns, time.perf_counter_ns() - begin_ns
    return wall_ns / 1e6, cpu_ns / 1e6


def make(outside: HandedOver, writer: StoreWriter) -> tuple[Dispatcher, SlotStats]:
    """
    Return a dispatcher with replicas that are there and robots that have their sessions, and its
    counters.
    """
    rules = RouterParameters(
        **{f'slot_{name}': servers for name, servers in SLOTS.items()},
        split_percent=50,
        reply_timeout_s=1.0,
        hedge_factor=2.0,
        hedge_budget_percent=10.0,
        max_remembered_placements=CAPACITY,
    )
    table = RoutingTable(rules, placements=PlacementTable(CAPACITY, writer=writer))
    for slot in table.slots.values():
        for server in slot.replicas:
            status = ServerStatus(
                policy=f'{slot.name}@1',
                slot=slot.name,
                state=ServerStatus.State.ACTIVE,
                state_class=ServerStatus.StateClass.CHUNK_STATELESS,
                warmed_up=True,
            )
            slot.record_report(server, status)
    for number in range(ROBOTS):
        name = f'robot-{number}'
        ask = OpenSessionRequest(
            client_id=name, instance=1, session_epoch=1, reply_topic=f'/{name}/chunk', fps=30.0
        )
        table.sessions.add(ClientSession(ask, dict(SLOTS), time.monotonic_ns()))
    dispatcher = Dispatcher(
        table,
        outside,
        RequestObserver(),
        DropCounters(),
        lambda session, server: None,
        lambda replica, policy: None,
    )
    return dispatcher, table.stats


def request_of(number: int) -> bytes:
    """Return the next request of the robot whose turn it is; it tells what it executed."""
    robot, seq = number % ROBOTS, number // ROBOTS + 1
    header = Header(seq, 0, 1, 0, 1, MsgType.OBSERVATION)
    data = np.zeros(IMAGE_BYTES, np.uint8)
    images = tuple(Image(name, 480, 640, data, Codec.JPEG) for name in ('front', 'wrist'))
    return wire_observation.encode(
        Observation(
            header,
            f'robot-{robot}',
            f'robot-{robot}-{seq // EPISODE_REQUESTS}',
            np.zeros((1, JOINTS), np.float32),
            images,
            extensions=(wire_executed.encode(ExecutionReport(actions=seq)),),
        )
    )


def answer_to(number: int, slot: str) -> bytes:
    """Return the chunk that answers that request."""
    robot, seq = number % ROBOTS, number // ROBOTS + 1
    rows = np.zeros((ROWS, JOINTS), np.float32)
    header = Header(seq, 0, 1, 0, 1, MsgType.CHUNK, Flag.NONE)
    episode = f'robot-{robot}-{seq // EPISODE_REQUESTS}'
    return wire_chunk.encode(
        Chunk(header, f'robot-{robot}', episode, rows, rows, slot=slot, policy=f'{slot}@1')
    )
