# SPDX-License-Identifier: Apache-2.0
"""
What a trace costs a policy server: the CPU time of its process for each request, with and without.

Two real servers of a null policy, of which one traces, answer blocks of requests with two JPEG
cameras in turns, so that both meet the same machine. CPU time, since a thread that writes beside
the others shares their interpreter.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from statistics import median

from benchmarks.harness.client import PolicyClient
from benchmarks.harness.nodes import running, spinning_all
from benchmarks.harness.processes import cpu_s
from benchmarks.peers.peer_process import ImageSet, Way
from benchmarks.peers.this_package import (
    Node,
    open_way,
    PackageRoundTrip,
    policy_parameters,
)
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.contract.schema import Codec
from lerobot_serve.errors import UserError

ABOUT = 'CPU time of a policy server for each request, with a trace and without'
SIZE, BLOCK, WARM_UP_BLOCKS = ImageSet(2, 480, 640), 25, 4
GOAL_SHARE = 0.03
PARAMETERS = {'cameras': f'{SIZE} JPEG', 'requests_a_round': BLOCK}
WITH, WITHOUT = 'with a trace', 'without'
NAMES = 'traced', 'untraced'


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the one case; a block is a round. Main thread. Raises UserError."""
    with contextlib.ExitStack() as stack:
        clients = stack.enter_context(
            spinning_all(
                lambda runtime: [PolicyClient(runtime, f'bench_{n}', f'/{n}') for n in NAMES]
            )
        )
        traces = str(folder / 'server_trace'), "''"
        robots = {
            way: open_session(stack, client, trace, folder)
            for way, client, trace in zip((WITH, WITHOUT), clients, traces, strict=True)
        }
        series_ms: dict[str, list[float]] = {name: [] for name in robots}
        for done in range(WARM_UP_BLOCKS + rounds):
            for name, robot in robots.items():
                value = block_ms(robot)
                if done >= WARM_UP_BLOCKS:
                    series_ms[name].append(value)
    return [described(series_ms)]


def open_session(
    stack: contextlib.ExitStack, client: PolicyClient, trace_folder: str, folder: Path
) -> PackageRoundTrip:
    """Start a server, and open the session of its robot. Raises UserError."""
    parameters = policy_parameters(SIZE) | {'trace_folder': trace_folder}
    server = running(client, 'policy_server', client.server, parameters, folder)
    node, way = Node(stack.enter_context(server)), Way(client.server, Codec.JPEG)
    return open_way(stack, client.get_name(), way, node, SIZE, client)


def block_ms(robot: PackageRoundTrip) -> float:
    """Return the CPU time that a request took the server, in a block of them [ms]."""
    begin_s = cpu_s(robot.process.pid)
    done = sum(robot() is not None for _ in range(BLOCK))
    if not done:
        raise UserError('no request was answered')
    return 1e3 * (cpu_s(robot.process.pid) - begin_s) / done


def described(series_ms: dict[str, list[float]]) -> Case:
    # each round with the one beside it: a shared machine is not the same all the time
    pairs = zip(series_ms[WITH], series_ms[WITHOUT], strict=True)
    share = median(traced / untraced for traced, untraced in pairs) - 1
    return Case(
        'CPU time of a policy server for a request',
        parameters={'requests of a round': BLOCK, 'share': f'{share:.1%}'},
        series_ms=series_ms,
        ratios={f'{WITH}/{WITHOUT}': ratio(series_ms[WITH], series_ms[WITHOUT])},
        goals={f'under {GOAL_SHARE:.0%}': share < GOAL_SHARE},
    )
