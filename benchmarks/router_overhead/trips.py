# SPDX-License-Identifier: Apache-2.0
"""
What a router adds to a round trip: a request straight to a server and one through the router to
another server take turns, so that both meet the same machine.

One request is in flight at a time. A new episode begins every EPISODE_ROUNDS rounds, which the
router places and writes down.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from pathlib import Path

from benchmarks.harness.client import PolicyClient, SERVER
from benchmarks.harness.nodes import running, spinning_all
from benchmarks.harness.request_session import RequestSession
from benchmarks.harness.router_process import POLICY, ROUTER, start_router
from benchmarks.peers.comparison import RoundTripTime
from benchmarks.peers.peer_process import CHUNK_ROWS, ImageSet, JOINTS, Way
from benchmarks.peers.this_package import Node, open_way
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.telemetry.durations import summarize

ABOUT = 'round trip through a router against the same straight to a server'
# KB of a request -> height and width of the one raw picture that makes it so large
SIZES = {1: (16, 17), 180: (240, 256), 540: (384, 480)}
# slots of the router, each with one server
LAYOUTS = (('prod',), ('a', 'b'))
ROUNDS_FACTOR, WARM_UP_ROUNDS, EPISODE_ROUNDS = 5, 50, 100
GOAL_KB, GOAL_ADDED_MS, GOAL_P99_MS = 180, 0.6, 2.0
PARAMETERS = {
    'chunk': f'{CHUNK_ROWS}x{JOINTS}',
    'rounds_factor': ROUNDS_FACTOR,
    'warm_up_rounds': WARM_UP_ROUNDS,
    'episode_rounds': EPISODE_ROUNDS,
    'in_flight': 1,
    'order': 'direct, router, direct, router, ...',
}
# straight and through the router; None for no usable answer
Pair = tuple[RoundTripTime | None, RoundTripTime | None]


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each layout and size. Main thread. Raises UserError."""
    return [
        case for slots in LAYOUTS for case in measure_layout(slots, rounds * ROUNDS_FACTOR, folder)
    ]


def measure_layout(slots: tuple[str, ...], rounds: int, folder: Path) -> list[Case]:
    """Start servers and router, measure all sizes, end them. Raises UserError."""
    with contextlib.ExitStack() as stack:
        direct, routed = stack.enter_context(spinning_all(clients))
        server = stack.enter_context(running(direct, 'policy_server', SERVER, POLICY, folder))
        router = start_router(stack, routed, slots, POLICY, folder)
        ways = (direct, Node(server)), (routed, Node(router))
        return [measure_case(ways, slots, size_kb, rounds) for size_kb in SIZES]


def clients(runtime: NodeRuntime) -> list[PolicyClient]:
    return [
        PolicyClient(runtime, 'bench_direct'),
        PolicyClient(runtime, 'bench_routed', ROUTER),
    ]


def measure_case(
    ways: Sequence[tuple[PolicyClient, Node]],
    slots: tuple[str, ...],
    size_kb: int,
    rounds: int,
) -> Case:
    """Open a session on each way, make the rounds, close them. Raises UserError and Refused."""
    size = ImageSet(1, *SIZES[size_kb])
    with contextlib.ExitStack() as stack:
        paths = [
            open_way(stack, 'bench', Way(client.server), node, size, client).path
            for client, node in ways
        ]
        alternate(paths, WARM_UP_ROUNDS)
        pairs = alternate(paths, rounds)
        return describe(f'{size_kb} KB, slots {"|".join(slots)}', size_kb, paths, pairs)


def alternate(paths: Sequence[RequestSession], rounds: int) -> list[Pair]:
    """Make the rounds, one request on each way. Raises UserError."""
    pairs = []
    for number in range(rounds):
        for path in paths:
            path.episode_id = f'episode {number // EPISODE_ROUNDS} of {rounds}'
        pairs.append(tuple(path.trip() for path in paths))
    return pairs


def describe(
    name: str, size_kb: int, paths: Sequence[RequestSession], pairs: Sequence[Pair]
) -> Case:
    """Return the case; only rounds in which both were answered are compared."""
    whole = [(a.total_ms, b.total_ms) for a, b in pairs if a and b]
    direct_ms, routed_ms = [a for a, _ in whole], [b for _, b in whole]
    added_ms = [b - a for a, b in whole]
    return Case(
        name,
        parameters={'request_bytes': paths[1].request_bytes, 'reply_bytes': paths[1].reply_bytes},
        counts={
            'rounds': len(pairs),
            'lost_direct': sum(a is None for a, _ in pairs),
            'lost_routed': sum(b is None for _, b in pairs),
        },
        series_ms={'direct': direct_ms, 'router': routed_ms, 'added': added_ms},
        ratios={'router/direct': ratio(routed_ms, direct_ms)},
        goals=goals(direct_ms, routed_ms, added_ms) if size_kb == GOAL_KB else {},
    )


def goals(
    direct_ms: Sequence[float], routed_ms: Sequence[float], added_ms: Sequence[float]
) -> dict[str, bool]:
    """Return whether the router is fast enough."""
    added, direct, routed = (summarize(values) for values in (added_ms, direct_ms, routed_ms))
    return {
        f'adds at most {GOAL_ADDED_MS:g} ms (p50 of pairs)': bool(added_ms)
        and added['p50'] <= GOAL_ADDED_MS,
        f'p99 is at most {GOAL_P99_MS:g} ms more': bool(added_ms)
        and routed['p99'] - direct['p99'] <= GOAL_P99_MS,
    }
