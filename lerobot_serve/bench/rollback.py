"""
How long a candidate that dies goes on getting new episodes, and when its canary is rolled back.

Real processes: a router with a canary, a server in each slot, one robot whose every request begins
an episode. The candidate's server is killed with SIGKILL. Until its first answer is overdue nobody
can know; a second for that is the router's default, and here one such answer is enough. A router
waits for several in a row unless it is told otherwise; one robot makes one of them a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from itertools import count
from pathlib import Path
import subprocess
import tempfile
import time

from benchmarks.harness.client import PolicyClient
from benchmarks.harness.nodes import running
from benchmarks.harness.request_session import JOINTS, RequestSession
from benchmarks.results.report import Case
from lerobot_serve.ros import qos
from lerobot_serve.ros.process.node_runtime import NodeRuntime, UserError
from lerobot_serve.wire.schema import Codec
from lerobot_serve_interfaces.msg import CanaryState, RoutingDecision

ABOUT = 'from the death of a candidate to no episodes for it'
ROUTER = '/policy_router'
REPEATS, LIMIT_S, WATCH_S = 5, 60.0, 3.0
GOAL_MS, ANSWER_TIMEOUT_MS = 1000.0, 1000.0
POLICY = {'policy_kind': 'null', 'policy_path': f'joints={JOINTS},chunk=100,cameras=,fps=30'}
PLAN = {
    'canary.plan': "['50:1000:0', '100']",
    'canary.minimum_s': 0.0,
    'answer_timeout_s': ANSWER_TIMEOUT_MS / 1e3,
    'replica_failures': 1,
    'failures_to_drain': 1,
    'standby_replicas': 0,
}
PARAMETERS = {'repeats': REPEATS, **PLAN}


class Watch:
    """When what the router tells came; the executor deposits."""

    def __init__(self, client: PolicyClient) -> None:
        self.candidate_ns: list[int] = []
        self.canary: dict[int, int] = {}
        client.create_subscription(
            RoutingDecision, f'{ROUTER}/routing', self._on_decision, qos.DECISIONS
        )
        client.create_subscription(CanaryState, f'{ROUTER}/canary', self._on_canary, qos.STATE)

    def _on_decision(self, decision: RoutingDecision) -> None:
        if decision.slot == 'b':
            self.candidate_ns.append(time.monotonic_ns())

    def _on_canary(self, told: CanaryState) -> None:
        self.canary.setdefault(told.state, time.monotonic_ns())


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case; each repeat starts all anew. Main thread. Raises UserError."""
    found = [measure_once(folder) for _ in range(min(rounds, REPEATS))]
    last_ms, rolled_back_ms, episodes = map(list, zip(*found, strict=True))
    known_ms = [each - ANSWER_TIMEOUT_MS for each in last_ms]
    return [
        Case(
            'SIGKILL of the candidate',
            counts={'episodes': sum(episodes)},
            series_ms={
                'its last new episode': last_ms,
                'canary rolled back': rolled_back_ms,
            },
            goals={
                f'no new episodes {GOAL_MS:g} ms after the first overdue answer': max(known_ms)
                <= GOAL_MS,
                f'rolled back {GOAL_MS:g} ms after the first overdue answer': max(rolled_back_ms)
                - ANSWER_TIMEOUT_MS
                <= GOAL_MS,
            },
        )
    ]


def measure_once(folder: Path) -> tuple[float, float, int]:
    """Return when the last episode was placed there and when it was rolled back, and how many."""
    with contextlib.ExitStack() as stack:
        runtime = NodeRuntime([])
        stack.callback(runtime.close)
        client = PolicyClient(runtime, 'bench', ROUTER)
        watch = Watch(client)
        runtime.add(client)
        runtime.spin_in_background()
        router, candidate = start(stack, client, folder)
        path = RequestSession(client, {}, Codec.RAW)
        path.open(router)
        stack.callback(path.close)
        client.wait_until_matched()
        names = map('episode {}'.format, count())
        play(path, names, lambda: len(watch.candidate_ns) >= 20, 'twenty episodes')
        candidate.kill()
        killed_ns = time.monotonic_ns()
        play(path, names, lambda: CanaryState.ROLLED_BACK in watch.canary, 'the roll back')
        until_ns = time.monotonic_ns() + int(WATCH_S * 1e9)
        play(path, names, lambda: time.monotonic_ns() > until_ns, 'what comes after it')
        last_ns = max(watch.candidate_ns)
        back_ns = watch.canary[CanaryState.ROLLED_BACK]
        episodes = int(next(names).split()[1])
        return max(0, last_ns - killed_ns) / 1e6, (back_ns - killed_ns) / 1e6, episodes


def start(
    stack: contextlib.ExitStack, client: PolicyClient, folder: Path
) -> tuple[subprocess.Popen, subprocess.Popen]:
    """Start two servers and a router; return the router and the candidate. Raises UserError."""
    state = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
    servers = [
        stack.enter_context(
            running(client, 'policy_server', f'/server_{slot}', POLICY | {'slot': slot}, folder)
        )
        for slot in 'ab'
    ]
    slots = {f'slot_{slot}': f"['/server_{slot}']" for slot in 'ab'}
    parameters = {'state_folder': state, **PLAN, **slots}
    router = stack.enter_context(running(client, 'policy_router', ROUTER, parameters, folder))
    return router, servers[1]


def play(
    path: RequestSession, names: Iterator[str], is_enough: Callable[[], bool], what: str
) -> None:
    """Begin episodes until it is enough. Raises UserError."""
    deadline = time.monotonic() + LIMIT_S
    while not is_enough():
        if time.monotonic() > deadline:
            raise UserError(f'{what}: not within {LIMIT_S:g} s; see the logs beside the results')
        path.episode_id = next(names)
        path.trip()
