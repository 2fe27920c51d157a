# SPDX-License-Identifier: Apache-2.0
"""
What answering several robots in one forward pass brings: dynamic_batching against round_robin.

One server, whose scheduler is changed live; the two take turns for some seconds each, so that both
meet the same machine. Every robot asks again as soon as it was answered.
"""

from __future__ import annotations

from pathlib import Path
import tempfile

import numpy as np
from rclpy.parameter import Parameter

from benchmarks.harness.camera_images import camera_images
from benchmarks.harness.client import SERVER
from benchmarks.harness.load_generator import LoadGenerator
from benchmarks.harness.nodes import serve, set_parameter
from benchmarks.policies import small_act
from benchmarks.policies.small_act import CAMERAS
from benchmarks.results.percentiles import pairwise_ratio
from benchmarks.results.report import Case

ABOUT = 'chunks a second of a small ACT, answered one by one and in batches'
SESSIONS = (1, 4, 16, 32)
SCHEDULERS = ('round_robin', 'dynamic_batching')
PERIOD_S = 4.0
ROUNDS_A_TURN = 50
PARAMETERS = {
    'policy': f'ACT, resnet18, one camera of {small_act.PIXELS}x{small_act.PIXELS}',
    'chunk_rows': small_act.CHUNK_ROWS,
    'cpu_threads': 1,
    'period_s': PERIOD_S,
    'order': 'round_robin, dynamic_batching, round_robin, ...; first turn of each not counted',
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each number of robots. Main thread. Raises UserError."""
    turns = max(2, rounds // ROUNDS_A_TURN)
    with tempfile.TemporaryDirectory() as scratch:
        policy = small_act.build(Path(scratch) / 'act_small')
        # one thread for the policy: the robots of this bench need the other core, and threads of
        # torch that wait for each other's core are slower than one
        parameters = small_act.server_parameters(policy) | {
            'max_sessions': max(SESSIONS),
            'cpu_threads': 1,
        }
        frames = {
            name: camera_images(small_act.PIXELS, small_act.PIXELS)[name] for name in CAMERAS
        }
        with serve(parameters, folder) as swarm:
            return [case(swarm, count, turns, frames, name_of(count)) for count in SESSIONS]


def name_of(count: int) -> str:
    return f'{count} sessions'


def case(
    swarm: LoadGenerator, count: int, turns: int, frames: dict[str, np.ndarray], name: str
) -> Case:
    """
    Let `count` robots ask under each scheduler in turn. Main thread. Raises UserError and what
    opening sessions raises.
    """
    swarm.open(count, frames)
    rates: dict[str, list[float]] = {name: [] for name in SCHEDULERS}
    latencies_ms: dict[str, list[float]] = {name: [] for name in SCHEDULERS}
    for turn in range(turns + 1):
        for scheduler in SCHEDULERS:
            set_parameter(swarm, SERVER, Parameter('scheduler', value=scheduler))
            seconds = swarm.run(PERIOD_S)
            if turn:
                rates[scheduler].append(len(swarm.latencies_ms) / seconds)
                latencies_ms[scheduler] += swarm.latencies_ms
    failures = dict(swarm.failures)
    swarm.close()
    gain = pairwise_ratio(rates['dynamic_batching'], rates['round_robin'])
    goal, least = ('not slower', 0.97) if count == 1 else ('at least twice as many', 2.0)
    return Case(
        name,
        parameters={f'chunks_per_s {n}': round(sum(r) / len(r), 1) for n, r in rates.items()},
        counts=failures,
        series_ms=latencies_ms,
        ratios={'chunks a second, dynamic_batching/round_robin': gain},
        goals={f'{goal} chunks a second': gain['median'] >= least} if count in (1, 16) else {},
    )
