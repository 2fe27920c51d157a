# SPDX-License-Identifier: Apache-2.0
"""
Whether a dashboard slows the requests of robots: round trips through a router without a dashboard,
and with one that serves 20 viewers and one that reads nothing, in turn. 300 robots publish their
state at 2 Hz all the time, and 300 sessions send requests.

The dashboard is stopped and started between the blocks. Each block begins after the same time of
requests that do not count, in which the dashboard finds the robots and its viewers connect.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from pathlib import Path

from benchmarks.dashboard.cost import fake_robots, ROBOTS, running_dashboard, VIEWERS
from benchmarks.harness.load_generator import LoadGenerator
from benchmarks.harness.nodes import spinning
from benchmarks.harness.processes import child, module_command
from benchmarks.harness.router_process import picture, POLICY, ROUTER, start_router
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.contract.schema import Codec
from lerobot_serve.errors import UserError

ABOUT = 'round trips through a router, without and with a dashboard'
RATE_HZ, PAIRS, ROUNDS_A_SECOND, SETTLE_S = 0.5, 3, 10, 10.0
# a viewer that outlives its block is ended with it
VIEWER_S = 600.0
PARAMETERS: dict[str, object] = {
    'robots': ROBOTS,
    'rate_hz': RATE_HZ,
    'pairs': PAIRS,
    'settle_s': SETTLE_S,
    'viewers': VIEWERS,
    'viewers_that_read_nothing': 1,
    'order': 'without, with, without, with, ...',
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case. Main thread. Raises UserError."""
    seconds = max(2.0, rounds / ROUNDS_A_SECOND)
    alone_ms: list[float] = []
    watched_ms: list[float] = []
    with contextlib.ExitStack() as stack:
        robots = stack.enter_context(spinning(lambda runtime: LoadGenerator(runtime, (ROUTER,))))
        start_router(stack, robots, ('prod',), POLICY | {'max_sessions': ROBOTS}, folder)
        robots.open(ROBOTS, {'observation.images.front': picture(64, 64)}, Codec.RAW)
        stack.callback(robots.close)
        stack.enter_context(fake_robots(folder))
        for _ in range(PAIRS):
            alone_ms += round_trips_ms(robots, seconds)
            with watched_dashboard(folder):
                watched_ms += round_trips_ms(robots, seconds)
    return [
        Case(
            f'{ROBOTS} robots at {RATE_HZ:g} Hz',
            series_ms={'without': alone_ms, 'with': watched_ms},
            ratios={'with_over_without': ratio(watched_ms, alone_ms)},
        )
    ]


def round_trips_ms(robots: LoadGenerator, seconds: float) -> list[float]:
    """
    Let the robots ask for so long, after a while that does not count; return what each round trip
    took. Raises UserError.
    """
    robots.pace(SETTLE_S, RATE_HZ)
    counts = robots.pace(seconds, RATE_HZ)
    if counts.lost or robots.failures:
        raise UserError(f'{counts.lost} requests were lost, failures: {robots.failures}')
    return robots.latencies_ms


@contextlib.contextmanager
def watched_dashboard(folder: Path) -> Iterator[None]:
    """Run a dashboard with its viewers. Raises UserError when it does not serve."""
    with running_dashboard(folder) as (_, port):
        viewers = module_command('dashboard.viewers', port, VIEWERS, VIEWER_S)
        with child(viewers, folder / 'viewers.log'):
            yield
