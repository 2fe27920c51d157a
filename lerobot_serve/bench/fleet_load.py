"""
A fleet behind one router: 300 robots that ask twice a second each, for a minute.

Every robot asks at a point of the period of its own and listens on a topic of its own; two servers
stand behind the router, one a slot. All robots are one process, which takes more time to hear of
an answer than a real one. What became of each request is counted by the robots and by the router.
"""

from __future__ import annotations

from collections import Counter
import contextlib
from dataclasses import dataclass
import os
from pathlib import Path
import subprocess
import time

from lerobot_serve.bench.client import READY_TIMEOUT_S
from lerobot_serve.bench.edge_cpu import cpu_s
from lerobot_serve.bench.report import Case
from lerobot_serve.bench.router import picture, POLICY, ROUTER, start_router
from lerobot_serve.bench.serving import memory_mb
from lerobot_serve.bench.swarm import Paced, Swarm
from lerobot_serve.ros import qos
from lerobot_serve.ros.runtime import Runtime, UserError
from lerobot_serve.wire.schema import Codec
from lerobot_serve_interfaces.msg import RouterState

ABOUT = 'a fleet of light robots behind one router'
ROBOTS, RATE_HZ, SLOTS = 300, 2.0, ('a', 'b')
JOINTS = tuple(f'joint_{i}.pos' for i in range(6))
# KB of a request -> height and width of its raw picture
SIZES = {1: (16, 17), 20: (80, 85)}
SECONDS_A_ROUND, WARM_UP_S = 0.3, 5.0
PARAMETERS = {
    'robots': ROBOTS,
    'rate_hz': RATE_HZ,
    'seconds_a_round': SECONDS_A_ROUND,
    'warm_up_s': WARM_UP_S,
}
# counted for requests that were answered all the same, or were counted before
NO_LOSS = ('late_answer', 'failed_over', 'unanswered', 'no_episode_id')


@dataclass(frozen=True, slots=True)
class Reading:
    """What the router has counted, and its memory."""

    memory_mb: float
    routed: int
    answered: int
    drops: Counter[str]


class Watch:
    """Reads the router's counters."""

    def __init__(self, swarm: Swarm, router: subprocess.Popen) -> None:
        self._pid = router.pid
        self._states: list[RouterState] = []
        swarm.create_subscription(RouterState, f'{ROUTER}/state', self._states.append, qos.STATE)

    def read(self) -> Reading:
        """Wait until the router tells of now. Raises UserError."""
        # the next state may have been on its way already
        enough, deadline = len(self._states) + 2, time.monotonic() + READY_TIMEOUT_S
        while len(self._states) < enough:
            if time.monotonic() > deadline:
                raise UserError('the router tells no state any more; see policy_router.log')
            time.sleep(0.05)
        state = self._states[-1]
        return Reading(
            memory_mb(self._pid),
            sum(slot.requests for slot in state.slots),
            sum(slot.answers for slot in state.slots),
            Counter({drop.reason: drop.count for drop in state.drops}),
        )


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each size of requests. Main thread. Raises UserError."""
    return [measure_case(size_kb, rounds * SECONDS_A_ROUND, folder) for size_kb in SIZES]


def measure_case(size_kb: int, seconds: float, folder: Path) -> Case:
    """Start servers and router, let the robots ask, end all. Raises UserError and Refused."""
    policy = POLICY | {'max_sessions': ROBOTS + 100}
    frames = {'observation.images.front': picture(*SIZES[size_kb])}
    with contextlib.ExitStack() as stack:
        runtime = Runtime([])
        stack.callback(runtime.close)
        swarm = Swarm(runtime, ROUTER, topics=ROBOTS)
        runtime.add(swarm)
        runtime.spin_in_background()
        router = start_router(stack, swarm, SLOTS, policy, folder)
        watch = Watch(swarm, router)
        swarm.open(ROBOTS, frames, JOINTS, Codec.RAW)
        swarm.pace(WARM_UP_S, RATE_HZ)
        return observe(f'requests of {size_kb} KB', swarm, router, watch, seconds)


def observe(
    name: str, swarm: Swarm, router: subprocess.Popen, watch: Watch, seconds: float
) -> Case:
    """Compare router and robots with themselves `seconds` later. Raises UserError."""
    before = watch.read()
    pids = {'router': router.pid, 'robots': os.getpid()}
    used_s = {who: cpu_s(pid) for who, pid in pids.items()}
    paced = swarm.pace(seconds, RATE_HZ)
    shares = {
        f'{who}_share_of_a_core': round((cpu_s(pid) - used_s[who]) / paced.seconds, 3)
        for who, pid in pids.items()
    }
    after = watch.read()
    drops = after.drops - before.drops
    parameters = {
        'seconds': round(paced.seconds, 1),
        'chunks_per_s': round(paced.answered / paced.seconds, 1),
        **shares,
        'router_mb_at_start': round(before.memory_mb, 1),
        'router_mb_at_end': round(after.memory_mb, 1),
    }
    counts = {
        'sent': paced.sent,
        'routed': after.routed - before.routed,
        'answered_by_servers': after.answered - before.answered,
        'answered': paced.answered,
        'lost': paced.lost,
        'late': paced.late,
        'passed_over': paced.passed_over,
        **swarm.failures,
        **{f'router_drop_{reason}': count for reason, count in sorted(drops.items())},
    }
    latencies_ms = [ms for robot in swarm.robots.values() for ms in robot.latencies_ms]
    return Case(name, parameters, counts, {'round trip': latencies_ms}, {}, goals(paced, drops))


def goals(paced: Paced, drops: Counter[str]) -> dict[str, bool]:
    """Return whether every request came to an end that somebody counted."""
    counted = sum(count for reason, count in drops.items() if reason not in NO_LOSS)
    never_came = paced.lost - paced.late
    return {
        'every request is answered or missed': paced.sent == paced.answered + paced.lost,
        'the router counts every loss': never_came <= counted,
        'nothing is lost': paced.lost == 0,
    }
