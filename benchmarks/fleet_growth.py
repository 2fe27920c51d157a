# SPDX-License-Identifier: Apache-2.0
"""
A growing fleet of a site: what a robot costs among 10, 30, 100 and 300, and whether 300 cost the
same after a while, over ROS 2 and over Zenoh (without shared memory, as
from machines of their own).

Two routers share their state in PostgreSQL, and four servers that answer at once stand behind
both, two a slot. Every robot asks one of the routers, twice a second at a point of the period of
its own, and begins an episode every half minute. The robots, all of them one process, join the
same routers step by step. Each run is cut into windows; a cost has grown when the median of the
later windows is above every earlier one. What became of each request is counted by the robots and
by the routers. In the end a router runs under a profiler, which slows it down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import contextlib
from dataclasses import replace
from functools import partial
import os
from pathlib import Path
import tempfile
import time

import numpy as np

from benchmarks.harness import profiler
from benchmarks.harness.client import READY_TIMEOUT_S
from benchmarks.harness.load_generator import LoadGenerator
from benchmarks.harness.nodes import spinning
from benchmarks.harness.processes import (
    cpu_s,
    ended_children_cpu_s,
    memory_mib,
    module_command,
    wait_until,
)
from benchmarks.harness.router_process import picture
from benchmarks.results.growth import (
    cpu_ms,
    fleet_case,
    FleetRun,
    growth_case,
    steady_case,
    uncounted,
    Window,
)
from benchmarks.results.report import Case
from benchmarks.site import postgres
from benchmarks.site.processes import LINKS, ROS, site_layout, start_site
from lerobot_serve.contract.schema import Codec
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import RouterState

ABOUT = 'what a robot costs in a growing fleet behind two routers and four servers, and over time'
FLEETS, RATE_HZ, EPISODE_REQUESTS = (10, 30, 100, 300), 2.0, 60
# height and width of the raw picture of a request of 20 KB
PICTURE = 80, 85
# the largest fleet asks for ten minutes in the usual 200 rounds, the others for a minute each
SECONDS_A_ROUND, SHORT_SECONDS_A_ROUND = 3.0, 0.3
WARM_UP_S, WINDOWS, PROFILE_S, PROFILES_BEFORE, HOTTEST = 3.0, 12, 10.0, 7, 6
PARAMETERS = {
    'rate_hz': RATE_HZ,
    'request_kb': 20,
    'requests_an_episode': EPISODE_REQUESTS,
    'seconds_a_round': SHORT_SECONDS_A_ROUND,
    'seconds_a_round_of_the_largest': SECONDS_A_ROUND,
    'windows_at_most': WINDOWS,
    'warm_up_s_at_most': WARM_UP_S,
}


class RoutedFleet:
    """Robots, store, routers and servers. The main thread's."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        folder: Path,
        robots: int,
        under: Sequence[str] = (),
        link: str = ROS,
    ) -> None:
        """
        Start routers and servers for so many robots, none yet; `under` is a command that runs the
        first router. Raises UserError.
        """
        store = stack.enter_context(postgres.postgres_server())
        layout = site_layout(link)
        endpoints = [layout.endpoints[router] for router in layout.routers if layout.endpoints]
        topics = -(-robots // len(layout.routers))
        build = partial(
            LoadGenerator,
            servers=layout.routers,
            topics=topics,
            endpoints=endpoints,
            shared_memory=False,
        )
        self.swarm = stack.enter_context(spinning(build))
        self.routers, servers = start_site(
            stack, self.swarm, layout, store.new_database(), robots + 100, folder, under
        )
        stack.callback(self.swarm.close)
        self._store = store
        self._pids = {'router': self.routers, 'servers': servers, 'robots': [os.getpid()]}
        self._states: dict[str, RouterState] = {}
        for name in layout.routers:
            self.swarm.create_subscription(
                RouterState,
                f'{name}/state',
                lambda state, name=name: self._states.__setitem__(name, state),
                qos.STATE,
            )
        self._routers = layout.routers

    def grow(self, robots: int) -> None:
        """Let robots join until there are so many. Raises Refused, Unreachable and UserError."""
        frames = {'observation.images.front': picture(*PICTURE)}
        more = robots - len(self.swarm.robots)
        self.swarm.open(more, frames, Codec.RAW, EPISODE_REQUESTS)

    def rest(self, seconds: float) -> Window:
        """Return what the processes need while no robot asks."""
        begin_s, used_s = time.monotonic(), self._cpu_s()
        time.sleep(seconds)
        return self._window(time.monotonic() - begin_s, used_s)

    def run(self, seconds: float) -> FleetRun:
        """Let all robots ask, after a warm-up. Raises UserError."""
        self.swarm.pace(min(WARM_UP_S, seconds), RATE_HZ)
        run, before, count = FleetRun(), self._drops(), window_count(seconds)
        for _ in range(count):
            used_s = self._cpu_s()
            paced = self.swarm.pace(seconds / count, RATE_HZ)
            run.windows.append(self._window(paced.seconds, used_s))
            run.counts.update(paced.counts | self.swarm.failures)
        drops = self._drops() - before
        run.counts['uncounted'] = uncounted(run.counts, drops)
        run.counts.update({f'router_drop_{reason}': n for reason, n in sorted(drops.items())})
        return run

    def _window(self, seconds: float, used_s: dict[str, float]) -> Window:
        spent_s = {who: now_s - used_s[who] for who, now_s in self._cpu_s().items()}
        held_mb = {who: sum(map(memory_mib, pids)) for who, pids in self._pids.items()}
        # as a list they would be what the robots' process grows by
        return Window(seconds, np.array(self.swarm.latencies_ms, np.float32), spent_s, held_mb)

    def _cpu_s(self) -> dict[str, float]:
        spent_s = {who: sum(map(cpu_s, pids)) for who, pids in self._pids.items()}
        # its processes share their memory, and some live for a moment only
        store_s = sum(map(cpu_s, self._store.pids)) + ended_children_cpu_s(self._store.pid)
        return spent_s | {'store': store_s}

    def _drops(self) -> Counter[str]:
        """Wait until all routers have reported what they count now. Raises UserError."""
        now_s = time.time()
        wait_until(
            lambda: all(self._is_later(name, now_s) for name in self._routers),
            'a router reports no state any more; see router_1.log',
            READY_TIMEOUT_S,
        )
        return Counter(
            {
                reason: sum(d.count for s in self._states.values() for d in s.dropped
                            if d.reason == reason)
                for reason in {d.reason for s in self._states.values() for d in s.dropped}
            }
        )  # fmt: skip

    def _is_later(self, router: str, now_s: float) -> bool:
        state = self._states.get(router)
        return state is not None and stamp_s(state) > now_s


def stamp_s(state: RouterState) -> float:
    return state.stamp.sec + state.stamp.nanosec / 1e9


def window_count(seconds: float) -> int:
    """Return into how many windows a run is cut: three at least, else one turn at least each."""
    return max(3, min(WINDOWS, int(seconds * RATE_HZ)))


def measure(rounds: int, folder: Path) -> list[Case]:
    """
    Return cases of each fleet, its course in time and its growth over each link, and a profile.
    Main thread. Raises UserError, Refused and Unreachable.
    """
    if not postgres.is_installed():
        return [Case('fleets of a site', {'not_measured': postgres.MISSING})]
    cases = [case for link in LINKS for case in measure_link(link, rounds, folder)]
    return [*cases, profile(min(PROFILE_S, rounds * SHORT_SECONDS_A_ROUND), folder)]


def measure_link(link: str, rounds: int, folder: Path) -> list[Case]:
    """Return the cases of one link. Raises UserError, Refused and Unreachable."""
    short_s, largest = rounds * SHORT_SECONDS_A_ROUND, FLEETS[-1]
    runs = {}
    with contextlib.ExitStack() as stack:
        fleet = RoutedFleet(stack, folder, largest, link=link)
        alone = fleet.rest(short_s)
        for robots in FLEETS:
            fleet.grow(robots)
            seconds = rounds * SECONDS_A_ROUND if robots == largest else short_s
            runs[robots] = fleet.run(seconds)
    cases = [
        *(fleet_case(robots, run, alone) for robots, run in runs.items()),
        growth_case(runs, alone),
        steady_case(largest, runs[largest]),
    ]
    return [replace(case, name=f'{link}: {case.name}') for case in cases]


def profile(seconds: float, folder: Path) -> Case:
    """Return what a router is busy with. Raises UserError, Refused and Unreachable."""
    robots = FLEETS[-1]
    name = f'one of the routers among {robots} robots, profiled'
    if not profiler.is_possible():
        return Case(name, {'not_measured': profiler.WHY_NOT})
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with contextlib.ExitStack() as stack:
            fleet = RoutedFleet(stack, folder, robots, module_command('harness.profiler', scratch))
            fleet.grow(robots)
            # to open sessions is another thing than to serve them, and later episodes open more
            fleet.run(PROFILES_BEFORE * seconds)
            os.kill(fleet.routers[0], profiler.RESET_SIGNAL)
            run = fleet.run(seconds)
        threads = profiler.read(Path(scratch))
    parameters = {
        f'thread_{thread}': text
        for thread, text in profiler.summarize_threads(threads, HOTTEST).items()
    }
    spent_ms = {'processor time of both a request, one profiled': cpu_ms(run.windows, 'router')}
    return Case(name, parameters, dict(run.counts), spent_ms)
