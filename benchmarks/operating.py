# SPDX-License-Identifier: Apache-2.0
"""
How long an operator waits for a verb, in a new process each time, with a running fleet.

Two policy servers, a router and two simulated robots run by `lerobot-serve up`. Each verb is
started in turn and timed from the start of its process to its end; a verb that changes something
ends when the new state shows the change. `rollout abort --now` ends when the router gives the
candidate no new episode. Python's bytecode is there but for one series, and files are in the cache
of the system after the first round, which does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import subprocess
import tempfile
import time

from benchmarks.harness.processes import child, wait_until
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError
from lerobot_serve.telemetry.durations import summarize
from lerobot_serve.tools.processes import executable_path

ABOUT = 'what an operator waits for a verb of lerobot-serve'
ROUNDS_A_RUN, WARM_UP_RUNS = 10, 1
HELP_LIMIT_MS, VERB_LIMIT_MS, ROLLBACK_LIMIT_MS = 300.0, 1000.0, 10_000.0
START_LIMIT_S, VERB_TIMEOUT_S = 120.0, 60.0
HELP, HELP_WITHOUT_BYTECODE = '--help', '--help, without bytecode'
ABORT = 'rollout abort --now --yes'
PARAMETERS = {
    'rounds_a_run': ROUNDS_A_RUN,
    'warm_up_runs': WARM_UP_RUNS,
    'order': 'each verb in turn, then again',
}
FLEET = """
servers:
  v1: {policy: reach_v1, policy_name: reach_v1, slot: a}
  v2: {policy: reach, policy_name: reach_v2, slot: b}
router: {split_percent: 50}
robots: {count: 2, simulated: true, task: reach the target}
"""
# the rollout is started before them; after an abort `undo` starts it again
VERBS = (
    'rollout status',
    'robots',
    'robot robot_1 pause',
    'robot robot_1 resume --yes',
    'robot robot_1 reset --yes',
    'rollout pause',
    'rollout resume --yes',
    'drain a --yes',
    'restore a --yes',
    ABORT,
    'rollout undo --yes',
)
AFTER = ('rollout stop --yes', 'split 80 --yes', 'split 50 --yes')
Series = dict[str, list[float]]


class Operator:
    """Runs verbs in processes with a ROS_HOME of its own."""

    def __init__(self, home: Path) -> None:
        self._command = str(executable_path('lerobot-serve'))
        # the traces of a fleet file may be below HOME
        self._environment = {**os.environ, 'ROS_HOME': str(home / 'ros'), 'HOME': str(home)}

    @contextlib.contextmanager
    def fleet(self, home: Path, log: Path) -> Iterator[None]:
        """Run the fleet for the block, once its robots stream. Raises UserError."""
        file = home / 'fleet.yaml'
        file.write_text(FLEET)
        with child([self._command, 'up', str(file)], log, self._environment) as process:
            wait_until(
                lambda: self._run('robots').stdout.count('STREAMING') >= 3,
                f'the fleet does not stream; see {log.name}',
                START_LIMIT_S,
                process,
            )
            yield

    def took_ms(self, verb: str, **environment: str) -> float:
        """Return how long a verb took, which must succeed. Raises UserError."""
        begin_ns = time.monotonic_ns()
        done = self._run(verb, **environment)
        took_ms = (time.monotonic_ns() - begin_ns) / 1e6
        if done.returncode != 0:
            raise UserError(f'{verb} ended with {done.returncode}: {done.stderr.strip()}')
        return took_ms

    def _run(self, verb: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._command, *verb.split()],
            env=self._environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=VERB_TIMEOUT_S,
        )


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return a case for the help and one for the verbs. Main thread. Raises UserError."""
    runs = max(2, rounds // ROUNDS_A_RUN)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        home = Path(scratch)
        operator = Operator(home)
        series_help = measure_help(operator, home, runs)
        with operator.fleet(home, folder / 'operating_fleet.log'):
            series_verbs = measure_verbs(operator, runs)
    return [
        Case(
            'lerobot-serve --help',
            series_ms=series_help,
            goals={
                f'p50 of --help at most {HELP_LIMIT_MS:g} ms': at_most(
                    series_help[HELP], 'p50', HELP_LIMIT_MS
                )
            },
        ),
        Case(
            'verbs of an operator',
            {'robots': 2, 'servers': 2},
            series_ms=series_verbs,
            goals=verb_goals(series_verbs),
        ),
    ]


def verb_goals(series_ms: Series) -> dict[str, bool]:
    goals = {
        f'p95 of {verb} at most {VERB_LIMIT_MS:g} ms': at_most(values, 'p95', VERB_LIMIT_MS)
        for verb, values in series_ms.items()
    }
    slowest = max(series_ms[ABORT])
    return goals | {
        f'each roll-back within {ROLLBACK_LIMIT_MS / 1000:g} s': slowest <= ROLLBACK_LIMIT_MS
    }


def at_most(values: list[float], figure: str, limit_ms: float) -> bool:
    return summarize(values)[figure] <= limit_ms


def measure_help(operator: Operator, home: Path, runs: int) -> Series:
    """Return the times of the help, with and without bytecode."""
    series_ms: Series = {HELP: [], HELP_WITHOUT_BYTECODE: []}
    for number in range(WARM_UP_RUNS + runs):
        empty = {'PYTHONPYCACHEPREFIX': str(home / f'bytecode_{number}')}
        for name, environment in ((HELP, {}), (HELP_WITHOUT_BYTECODE, empty)):
            took_ms = operator.took_ms('--help', **environment)
            if number >= WARM_UP_RUNS:
                series_ms[name].append(took_ms)
    return series_ms


def measure_verbs(operator: Operator, runs: int) -> Series:
    """Return the times of each verb."""
    series_ms: Series = {verb: [] for verb in (*VERBS, *AFTER)}
    operator.took_ms('rollout start reach_v2 --plan 50,100 --yes')
    for verbs in (VERBS, AFTER[1:]):
        if verbs is not VERBS:
            # once, because it ends what the other verbs steer
            series_ms[AFTER[0]].append(operator.took_ms(AFTER[0]))
        for number in range(WARM_UP_RUNS + runs):
            for verb in verbs:
                took_ms = operator.took_ms(verb)
                if number >= WARM_UP_RUNS:
                    series_ms[verb].append(took_ms)
    return series_ms
