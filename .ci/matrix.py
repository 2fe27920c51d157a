# SPDX-License-Identifier: Apache-2.0
"""
Run `make test` for each supported combination, one after the other, and print a table.

    .ci/matrix [--list] [--target TARGET] [--limit-min MINUTES] [RUN ...]

Each run has a workspace folder of its own, `.workspace/RUN`, made from PyPI wheels also where a
ROS 2 is sourced. LeRobot is 0.4.4 with Python 3.11 and 0.6.1 with 3.12. Needs only the standard
library, and `python3.11` and `python3.12` on the PATH.
Exit status: 0 when all runs passed, 1 when one did not, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import difflib
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / 'out' / 'matrix'
DISTROS = ('jazzy', 'kilted')
PYTHONS = ('3.11', '3.12')
# of a sourced ROS 2 or of `make shell`; with them, .ci/workspace.py would not use its wheels
ROS_VARIABLES = (
    *('ROS_DISTRO', 'AMENT_PREFIX_PATH', 'CMAKE_PREFIX_PATH', 'COLCON_PREFIX_PATH'),
    *('PYTHONPATH', 'LD_LIBRARY_PATH', 'LEROBOT_SERVE_SHELL'),
)
SUMMARY = re.compile(r'=+ (\d+ \w+.*?) in [\d.]+s.*=+$', re.MULTILINE)
PASSED, FAILED, TIMED_OUT, NOT_RUN = 'passed', 'failed', 'timed out', 'not run'


@dataclass(frozen=True)
class Run:
    """One combination."""

    distro: str
    python: str
    torch: str

    @property
    def name(self) -> str:
        """The name of the workspace folder, as .ci/workspace.py builds it."""
        suffix = '' if self.torch == 'cpu' else f'-torch-{self.torch}'
        return f'{self.distro}-py{self.python}{suffix}'

    def command(self, python: str, target: str) -> list[str]:
        return ['make', target, f'PYTHON={python}', f'ROS={self.distro}', f'TORCH={self.torch}']


@dataclass(frozen=True)
class Result:
    """The result of one run; `text` has the counts of pytest, or why it did not run."""

    run: Run
    status: str
    text: str = ''
    seconds: float = 0.0


def all_runs() -> list[Run]:
    """Return each distribution with each Python, and each once as on a robot, without torch."""
    full = [Run(distro, python, 'cpu') for distro in DISTROS for python in PYTHONS]
    return full + [Run(distro, PYTHONS[0], 'none') for distro in DISTROS]


def chosen(names: Sequence[str]) -> list[Run]:
    """Return the named runs in the order of the matrix, all without names. Raises ValueError."""
    known = {run.name: run for run in all_runs()}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f'did you mean {near[0]}? ' if near else ''
            raise ValueError(f'{name} is not a run; {hint}there are {", ".join(known)}')
    return [run for name, run in known.items() if not names or name in names]


def without_ros(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the ROS 2 that is sourced in it."""
    return {name: value for name, value in environment.items() if name not in ROS_VARIABLES}


def counts(log: str) -> str:
    """Return the last summary of pytest in a log, for example '12 passed, 1 skipped'."""
    found = SUMMARY.findall(log)
    return found[-1] if found else ''


def interpreter(version: str) -> str:
    """Return the path of this Python, '' without one. A shim of pyenv may lead nowhere."""
    path = shutil.which(f'python{version}')
    if path is None:
        return ''
    probe = subprocess.run([path, '-c', 'import sys; print(sys.executable)'], capture_output=True)
    return probe.stdout.decode().strip() if probe.returncode == 0 else ''


def carry_out(run: Run, target: str, limit_s: float) -> Result:
    """Run `make` with its output in a log file."""
    python = interpreter(run.python)
    if not python:
        return Result(run, NOT_RUN, f'python{run.python} is not on the PATH')
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f'{run.name}.log'
    began = time.monotonic()
    with log.open('w') as output:
        process = subprocess.Popen(
            run.command(python, target),
            cwd=ROOT,
            env=without_ros(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = wait(process, limit_s)
    return Result(run, status, counts(log.read_text(errors='replace')), time.monotonic() - began)


def wait(process: subprocess.Popen[bytes], limit_s: float) -> str:
    """Return how a run ended; end it with all that it started at the limit and on Ctrl-C."""
    status = FAILED
    try:
        status = PASSED if process.wait(limit_s) == 0 else FAILED
    except subprocess.TimeoutExpired:
        status = TIMED_OUT
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return status


def table(results: Sequence[Result]) -> str:
    """Return the results in columns."""
    rows = [('run', 'result', 'minutes', 'tests')]
    rows += [(r.run.name, r.status, f'{r.seconds / 60:.1f}', r.text) for r in results]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ['  '.join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return '\n'.join(lines)


def exit_status(results: Sequence[Result]) -> int:
    return int(any(result.status != PASSED for result in results))


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='.ci/matrix', description='Run `make test` everywhere.')
    parser.add_argument('runs', nargs='*', metavar='RUN', help='some of the runs; default: all')
    parser.add_argument('--list', action='store_true', help='print the runs and exit')
    parser.add_argument('--target', default='test', help='the target of make; default: test')
    parser.add_argument(
        '--limit-min', type=float, default=90.0, help='minutes for each run; default: 90'
    )
    parsed = parser.parse_args(arguments)
    try:
        parsed.runs = chosen(parsed.runs)
    except ValueError as error:
        parser.error(str(error))
    return parsed


def main(
    arguments: Sequence[str], carry_out: Callable[[Run, str, float], Result] = carry_out
) -> int:
    given = options(arguments)
    if given.list:
        print('\n'.join(run.name for run in given.runs))
        return 0
    results = []
    for run in given.runs:
        print(f'{run.name}: make {given.target}, log in out/matrix/{run.name}.log', flush=True)
        results.append(carry_out(run, given.target, given.limit_min * 60))
    print(table(results))
    return exit_status(results)


if __name__ == '__main__':
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
