# SPDX-License-Identifier: Apache-2.0
"""
What a dashboard costs with 300 robots: a share of a core, bytes for each viewer, the time from a
change of a state to its arrival at a viewer, and the share of a core of a browser with the page.

The robots publish their state at 2 Hz, from five processes. One dashboard serves 20 viewers, and
one more that reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
from pathlib import Path
import shutil
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.dashboard.browser import browser_path, browser_share, cpu_s
from benchmarks.harness.processes import child, free_endpoints
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError

ABOUT = 'what a dashboard costs with 300 robots and 20 viewers'
ROBOTS, PROCESSES, RATE_HZ, VIEWERS = 300, 5, 2.0, 20
CORE_GOAL_PERCENT, VIEWER_GOAL_KB, CHANGE_GOAL_MS = 5.0, 200.0, 500.0
SETTLE_S, READY_LIMIT_S, ROUNDS_A_SECOND = 15.0, 60.0, 10
MODULE = (sys.executable, '-m')
PARAMETERS = {
    'robots': ROBOTS,
    'rate_hz': RATE_HZ,
    'viewers': VIEWERS,
    'viewers_that_read_nothing': 1,
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return a case without viewers, and one with them. Main thread. Raises UserError."""
    command = shutil.which('lerobot-serve')
    if command is None:
        raise UserError('lerobot-serve is not found; run this by make bench')
    seconds = max(5.0, rounds / ROUNDS_A_SECOND)
    port = free_endpoints(1)[0].rpartition(':')[2]
    words = [command, 'dashboard', '--port', port, '--token-file', str(folder / 'tokens')]
    with child(words, folder / 'dashboard.log') as dashboard:
        wait_until_ready(port, folder / 'dashboard.log')
        return measure_fleet(dashboard, port, seconds, folder)


def measure_fleet(
    dashboard: subprocess.Popen, port: str, seconds: float, folder: Path
) -> list[Case]:
    """Start the robots, then measure without viewers, with them, and in a browser."""
    with fake_robots(folder):
        time.sleep(SETTLE_S)
        begin_s, begun_s = cpu_s(dashboard.pid), time.monotonic()
        time.sleep(seconds)
        alone = (cpu_s(dashboard.pid) - begin_s) / (time.monotonic() - begun_s)
        return [
            Case(
                '300 robots, no viewer',
                {'core_percent': round(100 * alone, 2)},
                goals=core_goal(100 * alone),
            ),
            measure_viewers(dashboard, port, seconds),
            measure_browser(port, seconds, folder),
        ]


@contextlib.contextmanager
def fake_robots(folder: Path) -> Iterator[None]:
    """Run all robots, in several processes."""
    each = ROBOTS // PROCESSES
    with contextlib.ExitStack() as stack:
        for number in range(PROCESSES):
            words = [*MODULE, 'benchmarks.dashboard.fake_robots', str(1 + number * each)]
            words += [str(each), str(RATE_HZ)]
            stack.enter_context(child(words, folder / f'robots_{number}.log'))
        yield


def measure_browser(port: str, seconds: float, folder: Path) -> Case:
    """Return the case of one browser with the fleet view; it needs a Chromium."""
    path, name = browser_path(), '300 robots, all processes of a browser'
    if not path:
        return Case(name, {'not_measured': 'no Chromium; install one, or name one in CHROMIUM'})
    percent = browser_share(path, port, seconds, folder)
    return Case(name, {'core_percent': round(percent, 2)}, goals=core_goal(percent))


def core_goal(percent: float) -> dict[str, bool]:
    return {f'at most {CORE_GOAL_PERCENT:g} % of a core': percent <= CORE_GOAL_PERCENT}


def measure_viewers(dashboard: subprocess.Popen, port: str, seconds: float) -> Case:
    """Return the case with viewers. Raises UserError when they fail."""
    begin_s, begun_s = cpu_s(dashboard.pid), time.monotonic()
    words = [
        *MODULE,
        'benchmarks.dashboard.viewers',
        port,
        str(VIEWERS),
        str(seconds),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f'the viewers failed: {done.stderr[-400:]}')
    share = (cpu_s(dashboard.pid) - begin_s) / (time.monotonic() - begun_s)
    found = json.loads(done.stdout)
    kb, slowest_ms = max(found['kb_a_second']), max(found['delays_ms'])
    return Case(
        '300 robots, 20 viewers, one that reads nothing',
        {'core_percent': round(100 * share, 2), 'kb_a_second_for_each': round(kb, 1)},
        series_ms={'change_to_viewer': found['delays_ms']},
        goals=core_goal(100 * share)
        | {
            f'at most {VIEWER_GOAL_KB:g} kB/s for each viewer': kb <= VIEWER_GOAL_KB,
            f'a change is seen within {CHANGE_GOAL_MS:g} ms': slowest_ms <= CHANGE_GOAL_MS,
        },
    )


def wait_until_ready(port: str, log: Path) -> None:
    """Return when the dashboard serves. Raises UserError."""
    deadline_s = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline_s:
        try:
            with urlopen(f'http://127.0.0.1:{port}/healthz', timeout=1.0):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise UserError(f'the dashboard does not serve; see {log}')
