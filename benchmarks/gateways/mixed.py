# SPDX-License-Identifier: Apache-2.0
"""
Clients of all protocols at one gateway, one of which stops reading: what the others notice.

In turn, all clients read for a period, and one of them sends as much as it can and reads nothing.
It is a client of each protocol in turn; a robot client of LeRobot cannot do so, because gRPC reads
for it. The other clients ask at a fixed rate all the time. The clients are of this package, small
and in one process; gateway, router and server are processes of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from benchmarks.gateways.gateway_process import ROUTED, running_fleet, running_gateway
from benchmarks.gateways.paced_clients import open_all, Period, run_period
from benchmarks.gateways.wire_clients import (
    GrootClient,
    HttpClient,
    LeRobotClient,
    OpenpiClient,
    PolicyServiceClient,
    WireClient,
)
from benchmarks.harness.machine import load
from benchmarks.peers.comparison import compare
from benchmarks.peers.peer_process import Address, frames, ImageSet, NULL_POLICY
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError

ABOUT = 'clients of all protocols at one gateway, one of which stops reading'
CLIENTS, RATE_HZ, PERIOD_S = 32, 2.0, 5.0
ROUNDS_A_PAIR = 25
SIZE = ImageSet(1, 240, 256)
GOAL_RATIO = 1.1
KINDS = {
    'openpi': OpenpiClient,
    'http': HttpClient,
    'groot': GrootClient,
    'policy_service': PolicyServiceClient,
    'lerobot': LeRobotClient,
}
STOPPING = ('openpi', 'http', 'groot', 'policy_service')
READ, STOPPED = 'all read', 'one does not read'
PARAMETERS = {
    **NULL_POLICY,
    'picture': f'{SIZE.height}x{SIZE.width}',
    'way': ROUTED,
    'order': 'a period of each, and again',
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the case. Main thread. Raises UserError."""
    load_before = load()
    pairs = max(rounds // ROUNDS_A_PAIR, 1)
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(running_fleet(SIZE, folder))
        doors = stack.enter_context(running_gateway(fleet, ROUTED, tuple(KINDS), folder))
        found = asyncio.run(alternate(doors, pairs))
    if not found[READ].latencies_ms:
        raise UserError(f'no request through the gateway was answered; see the logs in {folder}')
    facts = {'clients': CLIENTS, 'rate_hz': RATE_HZ, 'period_s': PERIOD_S, 'pairs': pairs}
    facts |= {'load_before': load_before, 'load_after': load()}
    return [describe(facts, found)]


async def alternate(doors: dict[str, Address], pairs: int) -> dict[str, Period]:
    """Make the periods, each pair with a client of another protocol that stops."""
    names = [list(KINDS)[number % len(KINDS)] for number in range(CLIENTS)]
    clients: list[WireClient] = [KINDS[name](doors[name], frames(SIZE)) for name in names]
    await open_all(clients)
    found = {READ: Period(), STOPPED: Period()}
    try:
        # fills caches, and opens the sessions
        await run_period(clients, None, RATE_HZ, PERIOD_S)
        for pair in range(pairs):
            stopping = clients[names.index(STOPPING[pair % len(STOPPING)])]
            # the same others in both
            found[READ].add(await run_period(clients, stopping, RATE_HZ, PERIOD_S, reads=True))
            found[STOPPED].add(await run_period(clients, stopping, RATE_HZ, PERIOD_S))
    finally:
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
    return found


def describe(facts: dict[str, object], found: dict[str, Period]) -> Case:
    """Return the case: the others in both states, and whether they notice."""
    counts = {f'asked, {state}': each.asked for state, each in found.items()}
    counts |= {f'failed, {state}': len(each.errors) for state, each in found.items()}
    counts['sent and not read'] = found[STOPPED].unread
    if errors := [text for each in found.values() for text in each.errors]:
        facts = facts | {'first_errors': errors[:3]}
    series = {state: each.latencies_ms for state, each in found.items()}
    ratio = compare(series[STOPPED], series[READ])
    return Case(
        f'{CLIENTS} clients of {len(KINDS)} protocols',
        facts,
        counts,
        series,
        {f'{STOPPED} / {READ}': ratio},
        {
            f'p99 of the others at most {GOAL_RATIO:g} x': bool(ratio)
            and ratio['p99'] <= GOAL_RATIO,
            'the others get all replies': not any(each.errors for each in found.values()),
        },
    )
