# SPDX-License-Identifier: Apache-2.0
"""
Robots come and go: sessions opened and closed straight at a server and through a router to
another, in turn, so that both meet the same machine.

AT_ONCE robots do so at a time, as when a fleet is switched on.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
from functools import partial
from pathlib import Path
import time

from msgspec.structs import replace

from benchmarks.harness.client import LIFESPAN_S, open_when_ready, SERVER
from benchmarks.harness.nodes import running, spinning_node
from benchmarks.harness.processes import cpu_s
from benchmarks.harness.request_session import session_request
from benchmarks.harness.router_process import picture, POLICY, ROUTER, start_router
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.contract.schema import Codec
from lerobot_serve.links.fake import FakeReplies
from lerobot_serve.links.ros.link import RosLink
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.telemetry.durations import summarize

ABOUT = 'robots come and go: sessions opened and closed, straight and through a router'
AT_ONCE, ROBOTS_A_TURN, CALL_S = 4, 20, 5.0
GOAL_TAIL = 5.0
PARAMETERS = {
    'at_once': AT_ONCE,
    'robots_a_turn': ROBOTS_A_TURN,
    'order': 'direct, router, direct, router, ...',
}
# what opening and closing took [ms]
Visit = tuple[float, float]


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case. Main thread. Raises UserError, Refused and Unreachable."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(spinning_node('bench_sessions'))
        stack.enter_context(running(node, 'policy_server', SERVER, POLICY, folder))
        router = start_router(stack, node, ('prod',), POLICY, folder)
        crowd = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        ways = [
            ServerClient(RosLink(node, name, lifespan_s=LIFESPAN_S), FakeReplies())
            for name in (SERVER, ROUTER)
        ]
        visits: tuple[list[Visit], list[Visit]] = ([], [])
        for sessions in ways:
            list(crowd.map(partial(visit, sessions), range(ROBOTS_A_TURN)))
        begin_s = cpu_s(router.pid)
        for _ in range(max(1, rounds // ROBOTS_A_TURN)):
            for sessions, found in zip(ways, visits, strict=True):
                found += crowd.map(partial(visit, sessions), range(ROBOTS_A_TURN))
        spent_ms = 1000 * (cpu_s(router.pid) - begin_s) / len(visits[1])
        return [describe(*visits, spent_ms)]


def visit(sessions: ServerClient, number: int) -> Visit:
    """Open a session and close it. One of the crowd's threads."""
    name = f'robot_{number}'
    frames = {'observation.images.front': picture(16, 17)}
    mine = replace(session_request(f'/{name}/action_chunk', frames, Codec.RAW), client_id=name)
    begin_s = time.perf_counter()
    open_when_ready(sessions, mine)
    open_s = time.perf_counter()
    sessions.close(mine, CALL_S)
    return 1000 * (open_s - begin_s), 1000 * (time.perf_counter() - open_s)


def describe(direct: Sequence[Visit], routed: Sequence[Visit], spent_ms: float) -> Case:
    """Return the case; `spent_ms` is the router's processor time for one session."""
    ways = {'direct': direct, 'router': routed}
    series_ms = {
        f'{act}, {way}': [each[place] for each in visits]
        for way, visits in ways.items()
        for place, act in enumerate(('open', 'close'))
    }
    opened = summarize(series_ms['open, router'])
    return Case(
        f'{AT_ONCE} at once',
        parameters={'processor_ms_of_router_a_session': round(spent_ms, 1)},
        series_ms=series_ms,
        ratios={
            f'{act}, router/direct': ratio(
                series_ms[f'{act}, router'], series_ms[f'{act}, direct']
            )
            for act in ('open', 'close')
        },
        goals={
            f'p99 of opening through the router is at most {GOAL_TAIL:g} times its p50': (
                opened['p99'] <= GOAL_TAIL * opened['p50']
            )
        },
    )
