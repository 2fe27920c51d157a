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
import subprocess
import time
from urllib.request import urlopen

from benchmarks.dashboard.browser import browser_path, browser_share
from benchmarks.harness.processes import child, cpu_s, free_ports, module_command, wait_until
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError
from lerobot_serve.tools.processes import executable_path

ABOUT = 'what a dashboard costs with 300 robots and 20 viewers'
ROBOTS, PROCESSES, RATE_HZ, VIEWERS = 300, 5, 2.0, 20
CORE_GOAL_PERCENT, VIEWER_GOAL_KB, CHANGE_GOAL_MS = 5.0, 200.0, 500.0
SETTLE_S, READY_LIMIT_S, ROUNDS_A_SECOND = 15.0, 60.0, 10
PARAMETERS = {
    'robots': ROBOTS,
    'rate_hz': RATE_HZ,
    'viewers': VIEWERS,
    'viewers_that_read_nothing': 1,
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return a case without viewers, and one with them. Main thread. Raises UserError."""
    seconds = max(5.0, rounds / ROUNDS_A_SECOND)
    with running_dashboard(folder) as (dashboard, port), fake_robots(folder):
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
            words = module_command('dashboard.fake_robots', 1 + number * each, each, RATE_HZ)
            stack.enter_context(child(words, folder / f'robots_{number}.log'))
        yield


def measure_browser(port: int, seconds: float, folder: Path) -> Case:
    """Return the case of one browser with the fleet view; it needs a Chromium."""
    path, name = browser_path(), '300 robots, all processes of a browser'
    if not path:
        return Case(name, {'not_measured': 'no Chromium; install one, or name one in CHROMIUM'})
    percent = browser_share(path, port, seconds, folder)
    return Case(name, {'core_percent': round(percent, 2)}, goals=core_goal(percent))


def core_goal(percent: float) -> dict[str, bool]:
    return {f'at most {CORE_GOAL_PERCENT:g} % of a core': percent <= CORE_GOAL_PERCENT}


def measure_viewers(dashboard: subprocess.Popen, port: int, seconds: float) -> Case:
    """Return the case with viewers. Raises UserError when they fail."""
    begin_s, begun_s = cpu_s(dashboard.pid), time.monotonic()
    words = module_command('dashboard.viewers', port, VIEWERS, seconds)
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


@contextlib.contextmanager
def running_dashboard(folder: Path) -> Iterator[tuple[subprocess.Popen, int]]:
    """Run a dashboard, and give its process and port once it serves. Raises UserError."""
    command, port = str(executable_path('lerobot-serve')), free_ports(1)[0]
    log, tokens = folder / 'dashboard.log', str(folder / 'tokens')
    words = [command, 'dashboard', '--port', str(port), '--token-file', tokens]
    with child(words, log) as process:
        otherwise = f'the dashboard does not serve; see {log}'
        wait_until(lambda: is_ready(port), otherwise, READY_LIMIT_S, process)
        yield process, port


def is_ready(port: int) -> bool:
    with contextlib.suppress(OSError), urlopen(f'http://127.0.0.1:{port}/healthz', timeout=1.0):
        return True
    return False
