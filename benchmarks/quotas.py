# SPDX-License-Identifier: Apache-2.0
"""
Robots ask through a router twice a second while another one sends a hundred times its quota.

Blocks without and with the flood take turns, with its quota and, for comparison, without one. The
robots are one process, the flood is another one on the same cores: what it costs to send is part
of what the robots feel. Main thread.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass, field
import os
from pathlib import Path
import signal
import subprocess
import time

from rclpy.parameter import Parameter

from benchmarks.harness import flood
from benchmarks.harness.client import READY_TIMEOUT_S
from benchmarks.harness.load_generator import LoadGenerator
from benchmarks.harness.nodes import set_parameter, spinning
from benchmarks.harness.processes import child, module_command, wait_until
from benchmarks.harness.router_process import ROUTER, start_router
from benchmarks.peers.peer_process import ImageSet, policy_frames
from benchmarks.peers.this_package import policy_parameters
from benchmarks.results.report import Case
from lerobot_serve.contract.schema import Codec
from lerobot_serve.telemetry.durations import summarize

ABOUT = 'one robot sends a hundred times its quota: what the others feel'
ROBOTS, RATE_HZ, QUOTA_HZ, TIMES_QUOTA = 8, 2.0, 2.0, 100.0
BLOCKS, SECONDS_A_ROUND, LEAST_S, SETTLE_S = 6, 0.05, 2.0, 1.0
SIZES = (ImageSet(0, 16, 16), ImageSet(2, 224, 224))
GOAL = 1.1
RULE = f'robot {flood.CLIENT_ID}: {QUOTA_HZ:g} requests/s'
PARAMETERS = {
    'robots': ROBOTS,
    'rate_hz': RATE_HZ,
    'quota': RULE,
    'flood_hz': QUOTA_HZ * TIMES_QUOTA,
    'blocks': BLOCKS,
    'seconds_a_block': f'{SECONDS_A_ROUND:g} x rounds',
    'policy': 'null',
    'order': 'alone, flood, alone, flood, ...',
}


@dataclass(slots=True)
class Felt:
    """Round trips of the robots [ms], and what was lost."""

    alone_ms: list[float] = field(default_factory=list)
    beside_ms: list[float] = field(default_factory=list)
    lost: int = 0


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return a case for each size, with the quota and without. Raises UserError."""
    seconds = max(LEAST_S, rounds * SECONDS_A_ROUND)
    return [case for size in SIZES for case in measure_size(size, seconds, folder)]


def measure_size(size: ImageSet, seconds: float, folder: Path) -> list[Case]:
    """Start router, server, robots and flood; measure, and end them. Raises UserError."""
    with contextlib.ExitStack() as stack:
        swarm = stack.enter_context(
            spinning(lambda runtime: LoadGenerator(runtime, (ROUTER,), topics=ROBOTS))
        )
        policy = policy_parameters(size) | {'max_sessions': ROBOTS + 1}
        start_router(stack, swarm, ('prod',), policy, folder)
        swarm.open(ROBOTS, policy_frames(size), Codec.RAW)
        stack.callback(swarm.close)
        flooding = stack.enter_context(start_flood(size, folder))
        cases = []
        for rule in ([RULE], []):
            quotas = Parameter('quotas', Parameter.Type.STRING_ARRAY, rule)
            set_parameter(swarm, ROUTER, quotas)
            felt = alternate(swarm, flooding, seconds)
            cases.append(describe(size, bool(rule), felt))
        return cases


@contextlib.contextmanager
def start_flood(size: ImageSet, folder: Path) -> Iterator[subprocess.Popen]:
    """Start the robot that floods, which rests; give its process. Raises UserError."""
    command = module_command('harness.flood', ROUTER, QUOTA_HZ * TIMES_QUOTA, size)
    log = folder / 'flood.log'
    with child(command, log) as process:
        wait_until(
            lambda: flood.READY_TEXT in log.read_text(),
            f'the flood did not start; see {log}',
            READY_TIMEOUT_S,
            process,
        )
        yield process


def alternate(swarm: LoadGenerator, flooding: subprocess.Popen, seconds: float) -> Felt:
    """Let the robots ask, without and with the flood in turn."""
    felt = Felt()
    swarm.pace(SETTLE_S, RATE_HZ)
    for _ in range(BLOCKS):
        felt.alone_ms += block(swarm, seconds, felt)
        os.kill(flooding.pid, signal.SIGUSR1)
        time.sleep(SETTLE_S)
        felt.beside_ms += block(swarm, seconds, felt)
        os.kill(flooding.pid, signal.SIGUSR2)
        time.sleep(SETTLE_S)
    return felt


def block(swarm: LoadGenerator, seconds: float, felt: Felt) -> list[float]:
    paced = swarm.pace(seconds, RATE_HZ)
    felt.lost += paced.lost + sum(swarm.failures.values())
    return swarm.latencies_ms


def describe(size: ImageSet, has_quota: bool, felt: Felt) -> Case:
    """Return the case."""
    alone, beside = summarize(felt.alone_ms), summarize(felt.beside_ms)
    times = {name: beside[name] / alone[name] for name in ('p50', 'p99')} if felt.alone_ms else {}
    pictures = f'{size} raw' if size.cameras else 'no pictures'
    goal = f'p99 beside the flood at most {GOAL:g} times that alone'
    return Case(
        f'{pictures}, {"with" if has_quota else "without"} the quota',
        counts={'lost': felt.lost},
        series_ms={'alone': felt.alone_ms, 'beside the flood': felt.beside_ms},
        ratios={'beside the flood to alone': times},
        goals={goal: bool(times) and times['p99'] <= GOAL} if has_quota else {},
    )
