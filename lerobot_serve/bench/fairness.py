"""
Is anybody served less than others? 100 robots ask a null policy as fast as they can.

The Jain index of what each got is 1 when all got the same, 1/100 when one got everything. A cycle
is one answer for each robot: who waits two cycles saw 200 answers to others before its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.nodes import serve
from benchmarks.results.report import Case

ABOUT = 'how evenly 100 robots are served'
SESSIONS, SECONDS, WARM_UP_S = 100, 10.0, 2.0
JOINTS = tuple(f'joint_{i}.pos' for i in range(6))
PARAMETERS = {'policy': 'null, no cameras', 'sessions': SESSIONS, 'seconds': SECONDS}
JAIN_GOAL, CYCLES_GOAL = 0.99, 2.0


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each scheduler. Main thread. Raises UserError."""
    path = 'joints=6,chunk=50,cameras=,fps=30'
    cases = []
    for scheduler in ('round_robin', 'earliest_dry', 'micro_batch'):
        parameters = {
            'policy_kind': 'null',
            'policy_path': path,
            'max_sessions': SESSIONS,
            'scheduler': scheduler,
        }
        with serve(parameters, folder) as served:
            served.swarm.open(SESSIONS, {}, JOINTS)
            served.swarm.run(WARM_UP_S)
            served.swarm.run(SECONDS)
            cases.append(describe(scheduler, list(served.swarm.robots.values())))
            served.swarm.close()
    return cases


def describe(scheduler: str, robots: Sequence) -> Case:
    counts = [len(robot.latencies_ms) for robot in robots]
    index = jain(counts)
    longest = max(max(robot.others_served, default=0) for robot in robots) / len(robots)
    return Case(
        scheduler,
        parameters={'jain_index': round(index, 4), 'longest_wait_cycles': round(longest, 2)},
        counts={'fewest': min(counts), 'most': max(counts), 'chunks': sum(counts)},
        series_ms={'round trip': [ms for robot in robots for ms in robot.latencies_ms]},
        goals={
            f'Jain index at least {JAIN_GOAL}': index >= JAIN_GOAL,
            f'nobody waits more than {CYCLES_GOAL:g} cycles': longest <= CYCLES_GOAL,
        },
    )


def jain(counts: Sequence[int]) -> float:
    """Return Jain's fairness index of what each got."""
    values = np.asarray(counts, float)
    squares = len(values) * (values**2).sum()
    return float(values.sum() ** 2 / squares) if squares else 0.0
