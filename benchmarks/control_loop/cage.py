# SPDX-License-Identifier: Apache-2.0
"""
What it costs to take one action from the queue and bring it through the safety cage.

In one thread without ROS, as the tick thread does it, at the size of a bimanual arm. What passes,
what is clamped and what is held take turns, so that all of them meet the same machine. The time of
the processor beside the clock's tells a slow cage from a busy machine.
"""

from __future__ import annotations

from pathlib import Path
import time

import numpy as np

from benchmarks.results.report import Case
from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.description import ActionLimit, Interlock, LastCommand, Motion, Verdict
from lerobot_serve.edge.action_queue import ActionQueue, ChunkSource
from lerobot_serve.telemetry.durations import summarize

ABOUT = 'one action taken from the queue and judged by the safety cage'
JOINTS, STEP_S = 14, 0.02
ACTIONS_A_ROUND, WARM_UP_ROUNDS = 50, 5
P99_GOAL_MS = 0.1
PARAMETERS = {
    'joints': JOINTS,
    'actions_a_round': ACTIONS_A_ROUND,
    'warm_up_rounds': WARM_UP_ROUNDS,
}
STATES = tuple(f'joint_{i}.pos' for i in range(JOINTS))
SOURCE = ChunkSource(1, 1, 1, 'episode', 0, 'a', 'null@0123456789abcdef')
EVERY_LIMIT = {'max_velocity': 4.0, 'max_acceleration': 50.0, 'max_lead': 0.3}
# they look at the state and force nothing
INTERLOCKS = tuple(Interlock(f'far {name}', name, None, 1.0, {name: 0.0}) for name in STATES[:2])
# what is wanted of every joint, which stands at 0
WANTED = {Verdict.PASS: 0.001, Verdict.CLAMPED: 1.0, Verdict.HELD: np.nan}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each set of limits. Main thread."""
    return [
        measure_case('step and position', {}, (), rounds),
        measure_case('every limit, two interlocks', EVERY_LIMIT, INTERLOCKS, rounds),
    ]


def measure_case(
    name: str, limits: dict[str, float], interlocks: tuple[Interlock, ...], rounds: int
) -> Case:
    """Let each verdict come up in turn, `ACTIONS_A_ROUND` times a round."""
    actions = tuple(
        ActionLimit(state, state, Motion.POSITION, -2.0, 2.0, 0.1, **limits) for state in STATES
    )
    cage = Cage(actions, interlocks, STATES, step_s=STEP_S, latch_after_trips=0)
    series_ms: dict[str, list[float]] = {}
    for done in range(WARM_UP_ROUNDS + rounds):
        for verdict, value in WANTED.items():
            kind = verdict.name.lower()
            clock_ms, cpu_ms = zip(*measure_verdict(cage, verdict, value), strict=True)
            if done >= WARM_UP_ROUNDS:
                series_ms.setdefault(kind, []).extend(clock_ms)
                series_ms.setdefault(f'{kind}, processor', []).extend(cpu_ms)
    played = [summarize(series_ms[kind])['p99'] for kind in ('pass', 'clamped')]
    goal = f'p99 of an action that passes or is clamped under {P99_GOAL_MS * 1000:g} us'
    return Case(name, dict(limits), {}, series_ms, goals={goal: max(played) < P99_GOAL_MS})


def measure_verdict(cage: Cage, verdict: Verdict, value: float) -> list[tuple[float, float]]:
    """
    Return what each action of a chunk costs by the clock and of the processor [ms].

    Raises RuntimeError when one is judged otherwise.
    """
    queue, here = ActionQueue(), np.zeros(JOINTS)
    last = LastCommand(here, here)
    chunk = np.full((ACTIONS_A_ROUND, JOINTS), value, np.float32)
    queue.append(chunk, SOURCE, mark=queue.mark())
    durations_ms = []
    for _ in range(ACTIONS_A_ROUND):
        begin_cpu_ns, begin_ns = time.thread_time_ns(), time.perf_counter_ns()
        planned, _ = queue.take_fresh(0)
        judgement = cage.judge(planned.action, last, measured=here, state=here)
        end_ns, end_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        durations_ms.append(((end_ns - begin_ns) / 1e6, (end_cpu_ns - begin_cpu_ns) / 1e6))
        if judgement.verdict != verdict:
            raise RuntimeError(f'expected {verdict.name}, got {judgement}')
    return durations_ms
