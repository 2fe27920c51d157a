# SPDX-License-Identifier: Apache-2.0
"""
What a trace costs a policy server: the CPU time of its process for each request, with and without.

Two real servers of a null policy, of which one traces, answer blocks of requests with two JPEG
cameras in turns, so that both meet the same machine. CPU time, since a thread that writes beside
the others shares their interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from pathlib import Path
from statistics import median

from benchmarks.harness.camera_images import camera_images
from benchmarks.harness.client import PolicyClient
from benchmarks.harness.nodes import running
from benchmarks.harness.processes import cpu_s
from benchmarks.harness.request_session import RequestSession
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.contract.schema import Codec
from lerobot_serve.errors import UserError
from lerobot_serve.ros.process.node_runtime import NodeRuntime

ABOUT = 'CPU time of a policy server for each request, with a trace and without'
HEIGHT, WIDTH, BLOCK, WARM_UP_BLOCKS = 480, 640, 25, 4
POLICY = f'joints=6,chunk=100,cameras=front:{HEIGHT}x{WIDTH}+wrist:{HEIGHT}x{WIDTH},fps=30'
GOAL_SHARE = 0.03
PARAMETERS = {'cameras': f'2 x {HEIGHT}x{WIDTH} JPEG', 'requests_a_round': BLOCK}
WITH, WITHOUT = 'with a trace', 'without'


class TracedServer:
    """One server and the robot that asks it. Main thread."""

    def __init__(self, runtime: NodeRuntime, name: str) -> None:
        self._client = PolicyClient(runtime, f'bench_{name}', f'/{name}')
        runtime.add(self._client)
        self.path = RequestSession(self._client, camera_images(HEIGHT, WIDTH), Codec.JPEG)
        self.pid = 0

    @contextlib.contextmanager
    def served(self, folder: Path, trace_folder: str) -> Iterator[TracedServer]:
        """Be served until the end. Raises UserError."""
        parameters = {'policy_kind': 'null', 'policy_path': POLICY, 'trace_folder': trace_folder}
        server = self._client.server
        with running(self._client, 'policy_server', server, parameters, folder) as process:
            self.pid = process.pid
            self.path.open(process)
            self._client.wait_until_matched()
            try:
                yield self
            finally:
                self.path.close()

    def block_ms(self) -> float:
        """Return the CPU time that a request took the server, in a block of them [ms]."""
        self._client.chunks.clear()
        begin_s = cpu_s(self.pid)
        done = sum(self.path.trip() is not None for _ in range(BLOCK))
        if not done:
            raise UserError('no request was answered')
        return 1e3 * (cpu_s(self.pid) - begin_s) / done


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the one case; a block is a round. Main thread. Raises UserError."""
    runtime = NodeRuntime([])
    try:
        robots = {
            WITH: TracedServer(runtime, 'traced'),
            WITHOUT: TracedServer(runtime, 'untraced'),
        }
        runtime.spin_in_background()
        with contextlib.ExitStack() as stack:
            for name, robot in robots.items():
                traces = str(folder / 'server_trace') if name == WITH else "''"
                stack.enter_context(robot.served(folder, traces))
            series_ms: dict[str, list[float]] = {name: [] for name in robots}
            for done in range(WARM_UP_BLOCKS + rounds):
                for name, robot in robots.items():
                    value = robot.block_ms()
                    if done >= WARM_UP_BLOCKS:
                        series_ms[name].append(value)
    finally:
        runtime.close()
    return [described(series_ms)]


def described(series_ms: dict[str, list[float]]) -> Case:
    # each round with the one beside it: a shared machine is not the same all the time
    pairs = zip(series_ms[WITH], series_ms[WITHOUT], strict=True)
    share = median(traced / untraced for traced, untraced in pairs) - 1
    return Case(
        'CPU time of a policy server for a request',
        parameters={'requests of a round': BLOCK, 'share': f'{share:.1%}'},
        series_ms=series_ms,
        ratios={f'{WITH}/{WITHOUT}': ratio(series_ms[WITH], series_ms[WITHOUT])},
        goals={f'under {GOAL_SHARE:.0%}': share < GOAL_SHARE},
    )
