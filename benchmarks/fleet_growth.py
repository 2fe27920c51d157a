# SPDX-License-Identifier: Apache-2.0
"""
A growing fleet behind one router: what a robot costs among 10, 30, 100 and 300, and whether 300
cost the same after a while.

Every robot asks twice a second at a point of the period of its own and listens on a topic of its
own; two servers that answer at once stand behind the router, one a slot. The robots, all of them
one process, join the same router step by step. Each run is cut into windows; a cost has grown when
the median of the later windows is above every earlier one. What became of each request is counted
by the robots and by the router. In the end a router runs under a profiler, which slows it down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import contextlib
import os
from pathlib import Path
import tempfile
import time

import numpy as np

from benchmarks.harness import profiler
from benchmarks.harness.client import READY_TIMEOUT_S
from benchmarks.harness.load_generator import LoadGenerator, PacedCounts
from benchmarks.harness.nodes import memory_mb
from benchmarks.harness.processes import module_command
from benchmarks.merge.edge_cpu import cpu_s
from benchmarks.results.growth import fleet_case, FleetRun, growth_case, steady_case, uncounted
from benchmarks.results.report import Case
from benchmarks.results.windows import cpu_ms, Window
from benchmarks.router_overhead import picture, POLICY, ROUTER, start_router_alone, start_servers
from lerobot_serve.ros import qos
from lerobot_serve.ros.process.node_runtime import NodeRuntime, UserError
from lerobot_serve.wire.schema import Codec
from lerobot_serve_interfaces.msg import RouterState

ABOUT = 'what a robot costs in a growing fleet behind one router, and over time'
FLEETS, RATE_HZ, SLOTS = (10, 30, 100, 300), 2.0, ('a', 'b')
JOINTS = tuple(f'joint_{i}.pos' for i in range(6))
# height and width of the raw picture of a request of 20 KB
PICTURE = 80, 85
# the largest fleet asks for ten minutes in the usual 200 rounds, the others for a minute each
SECONDS_A_ROUND, SHORT_SECONDS_A_ROUND = 3.0, 0.3
WARM_UP_S, WINDOWS, PROFILE_S, HOTTEST = 3.0, 12, 10.0, 6
PARAMETERS = {
    'rate_hz': RATE_HZ,
    'request_kb': 20,
    'seconds_a_round': SHORT_SECONDS_A_ROUND,
    'seconds_a_round_of_the_largest': SECONDS_A_ROUND,
    'windows_at_most': WINDOWS,
    'warm_up_s_at_most': WARM_UP_S,
}


class RoutedFleet:
    """Robots, router and servers. The main thread's."""

    def __init__(
        self, stack: contextlib.ExitStack, folder: Path, robots: int, under: Sequence[str] = ()
    ) -> None:
        """
        Start servers and router for so many robots, none yet; `under` is a command that runs the
        router. Raises UserError.
        """
        runtime = NodeRuntime([])
        stack.callback(runtime.close)
        self.swarm = LoadGenerator(runtime, ROUTER, topics=robots)
        runtime.add(self.swarm)
        runtime.spin_in_background()
        policy = POLICY | {'max_sessions': robots + 100}
        servers = start_servers(stack, self.swarm, SLOTS, policy, folder)
        self.router = start_router_alone(stack, self.swarm, SLOTS, folder, under)
        self._pids = {
            'router': [self.router.pid],
            'servers': [server.pid for server in servers],
            'robots': [os.getpid()],
        }
        self._states: list[RouterState] = []
        self.swarm.create_subscription(
            RouterState, f'{ROUTER}/state', self._states.append, qos.STATE
        )

    def grow(self, robots: int) -> None:
        """Let robots join until there are so many. Raises Refused, Unreachable and UserError."""
        frames = {'observation.images.front': picture(*PICTURE)}
        self.swarm.open(robots - len(self.swarm.robots), frames, JOINTS, Codec.RAW)

    def rest(self, seconds: float) -> Window:
        """Return what the processes need while nobody asks."""
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
            run.counts.update(counted(paced) | self.swarm.failures)
        drops = self._drops() - before
        run.counts['uncounted'] = uncounted(run.counts, drops)
        run.counts.update({f'router_drop_{reason}': n for reason, n in sorted(drops.items())})
        return run

    def _window(self, seconds: float, used_s: dict[str, float]) -> Window:
        spent_s = {who: now_s - used_s[who] for who, now_s in self._cpu_s().items()}
        held_mb = {who: sum(map(memory_mb, pids)) for who, pids in self._pids.items()}
        latencies_ms = [ms for robot in self.swarm.robots.values() for ms in robot.latencies_ms]
        # as a list they would be what the robots' process grows by
        return Window(seconds, np.array(latencies_ms, np.float32), spent_s, held_mb)

    def _cpu_s(self) -> dict[str, float]:
        return {who: sum(map(cpu_s, pids)) for who, pids in self._pids.items()}

    def _drops(self) -> Counter[str]:
        """Wait until the router tells of now. Raises UserError."""
        now_s, deadline = time.time(), time.monotonic() + READY_TIMEOUT_S
        while not (self._states and stamp_s(self._states[-1]) > now_s):
            if time.monotonic() > deadline:
                raise UserError('the router tells no state any more; see policy_router.log')
            time.sleep(0.02)
        return Counter({drop.reason: drop.count for drop in self._states[-1].dropped})


def stamp_s(state: RouterState) -> float:
    return state.stamp.sec + state.stamp.nanosec / 1e9


def window_count(seconds: float) -> int:
    """Return into how many windows a run is cut: three at least, else one turn at least each."""
    return max(3, min(WINDOWS, int(seconds * RATE_HZ)))


def counted(paced: PacedCounts) -> dict[str, int]:
    """Return what the robots counted."""
    return {
        'sent': paced.sent,
        'answered': paced.answered,
        'lost': paced.lost,
        'late': paced.late,
        'passed_over': paced.passed_over,
    }


def measure(rounds: int, folder: Path) -> list[Case]:
    """
    Return cases of each fleet, its course in time, its growth, and a profile. Main thread. Raises
    UserError, Refused and Unreachable.
    """
    short_s, largest = rounds * SHORT_SECONDS_A_ROUND, FLEETS[-1]
    runs = {}
    with contextlib.ExitStack() as stack:
        fleet = RoutedFleet(stack, folder, largest)
        alone = fleet.rest(short_s)
        for robots in FLEETS:
            fleet.grow(robots)
            seconds = rounds * SECONDS_A_ROUND if robots == largest else short_s
            runs[robots] = fleet.run(seconds)
    return [
        *(fleet_case(robots, run, alone) for robots, run in runs.items()),
        growth_case(runs, alone),
        steady_case(largest, runs[largest]),
        profile(min(PROFILE_S, short_s), folder),
    ]


def profile(seconds: float, folder: Path) -> Case:
    """Return what the router is busy with. Raises UserError, Refused and Unreachable."""
    robots = FLEETS[-1]
    name = f'the router among {robots} robots, profiled'
    if not profiler.is_possible():
        return Case(name, {'not_measured': profiler.WHY_NOT})
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with contextlib.ExitStack() as stack:
            fleet = RoutedFleet(stack, folder, robots, module_command('harness.profiler', scratch))
            fleet.grow(robots)
            # to open sessions is another thing than to serve them
            fleet.router.send_signal(profiler.RESET_SIGNAL)
            run = fleet.run(seconds)
        threads = profiler.read(Path(scratch))
    parameters = {
        f'thread_{thread}': text
        for thread, text in profiler.summarize_threads(threads, HOTTEST).items()
    }
    spent_ms = {'processor time a request, profiled': cpu_ms(run.windows, 'router')}
    return Case(name, parameters, dict(run.counts), spent_ms)
