# SPDX-License-Identifier: Apache-2.0
"""
The control period of a robot while a learner on the same machine trains, and while its training is
stopped, by turns.

Real processes on one machine, which is the worst case: a simulated arm, its edge controller, a
server, and a learner whose training computes all the time, at the lowest priority. Main thread.
"""

from __future__ import annotations

import importlib.util
from itertools import pairwise
import os
from pathlib import Path
import shutil
import signal
import time

import numpy as np

from benchmarks.loop_fleet.fleet import children, loop_fleet, LoopFleet, PIXELS
from benchmarks.loop_fleet.witness import Witness, witness
from benchmarks.results.percentiles import pairwise_ratio
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError
from lerobot_serve.learner.rounds.states import Phase
from lerobot_serve.tools.learning.program import NICE

ABOUT = 'the control period of a robot while a learner trains beside it, and while it is stopped'
ROUNDS_A_WINDOW, LEAST_WINDOWS, WINDOW_S = 20, 4, 10.0
LIMIT_S = 600.0
# it never ends by itself here
TRAINER: dict[str, object] = {'builtin': {'steps': 1_000_000, 'batch_size': 32, 'cpu_threads': 1}}
EPISODES = 4
WITH, WITHOUT = 'period, a learner trains', 'period, it is stopped'
MOST_RATIO = 1.5
PARAMETERS = {
    'rate_hz': 30,
    'cameras': f'2 x {PIXELS}x{PIXELS} raw',
    'trainer': 'builtin, one thread',
    'window_s': WINDOW_S,
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the case. Main thread. Raises UserError."""
    if importlib.util.find_spec('lerobot') is None:
        return [Case('not measured', {'why': 'lerobot is not installed, which writes datasets'})]
    home = folder / 'learner_cost'
    shutil.rmtree(home, ignore_errors=True)
    windows = max(LEAST_WINDOWS, rounds // ROUNDS_A_WINDOW)
    with (
        witness() as seen,
        loop_fleet(
            home, episodes_per_round=EPISODES, filters=('success',), trainer=TRAINER
        ) as fleet,
    ):
        return [compare(fleet, seen, windows)]


def compare(fleet: LoopFleet, seen: Witness, windows: int) -> Case:
    """Measure so many windows with and without a training, by turns. Raises UserError."""
    if not fleet.wait(lambda: seen.learner == Phase.TRAINING.value, LIMIT_S):
        raise UserError(f'the learner does not train within {LIMIT_S:g} s; see {fleet.home}')
    # only the steps before it were hurried
    fleet.hurries = False
    fleet.hurry(NICE)
    (step,) = training_of(fleet)
    niceness = os.getpriority(os.PRIO_PROCESS, step)
    periods: dict[str, list[list[float]]] = {WITH: [], WITHOUT: []}
    for _ in range(windows):
        for name, number in ((WITHOUT, signal.SIGSTOP), (WITH, signal.SIGCONT)):
            os.kill(step, number)
            periods[name].append(window(seen))
    p99 = {name: [float(np.percentile(each, 99)) for each in periods[name]] for name in periods}
    median = {name: [float(np.median(each)) for each in periods[name]] for name in periods}
    ratio = pairwise_ratio(p99[WITH], p99[WITHOUT])
    return Case(
        'control period beside a training',
        {'niceness of the training': niceness},
        {'windows': windows},
        {name: [value for each in periods[name] for value in each] for name in periods},
        {
            'p99, with/without': ratio,
            'p50, with/without': pairwise_ratio(median[WITH], median[WITHOUT]),
        },
        {f'p99 of the period at most {MOST_RATIO:g} x': ratio['median'] <= MOST_RATIO},
    )


def training_of(fleet: LoopFleet) -> list[int]:
    """Return the process that trains."""
    pid = fleet.pid('learner')
    return children(pid, every_thread=True) if pid else []


def window(seen: Witness) -> list[float]:
    """Return the control periods of the next window [ms]."""
    begin = len(seen.steps_s)
    time.sleep(WINDOW_S)
    steps_s = seen.steps_s[begin:]
    if len(steps_s) < 2:
        raise UserError('the robot does not move')
    return [1e3 * (after - before) for before, after in pairwise(steps_s)]
