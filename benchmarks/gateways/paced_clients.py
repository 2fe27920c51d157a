# SPDX-License-Identifier: Apache-2.0
"""Clients that ask at a fixed rate for a period, beside one that may stop reading. Event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import contextlib
from dataclasses import dataclass, field
from functools import partial
import time

import grpc

from benchmarks.gateways.wire_clients import BLOCKED_S, WireClient
from benchmarks.peers.paced_robots import pace
from benchmarks.peers.peer_process import LOST
from lerobot_serve.errors import UserError

REPLY_LIMIT_S = 10.0
OPEN_TRIES, RETRY_S = 10, 1.0
# a door that takes all that is sent and drops the replies never blocks
FLOOD_LIMIT_S, FLOOD_REQUESTS = 3.0, 2000
FAILURES = (UserError, OSError, EOFError, TimeoutError, grpc.RpcError)


@dataclass
class Period:
    """What the clients saw that read."""

    latencies_ms: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    asked: int = 0
    # requests of the client that stopped reading
    unread: int = 0

    def add(self, other: Period) -> None:
        self.latencies_ms += other.latencies_ms
        self.errors += other.errors
        self.asked += other.asked
        self.unread += other.unread


async def open_all(clients: Sequence[WireClient]) -> None:
    """Open one after the other. Raises UserError."""
    for client in clients:
        try:
            async with asyncio.timeout(REPLY_LIMIT_S):
                await client.open()
        except FAILURES as error:
            raise UserError(f'{type(client).__name__} cannot connect: {error!r:.300}') from None


async def run_period(
    clients: Sequence[WireClient],
    stopping: WireClient | None,
    rate_hz: float,
    period_s: float,
    *,
    reads: bool = False,
) -> Period:
    """
    Let all clients ask; `stopping` is not measured, and fills its connection first unless it
    `reads`. Raises UserError if it cannot connect again.
    """
    period = Period()
    stops = stopping is not None and not reads
    flood = None
    if stopping and stops:
        period.unread = await fill(stopping)
        flood = asyncio.create_task(go_on(stopping, period, rate_hz))
    asking = [client for client in clients if not (stops and client is stopping)]
    counted = [period if client is not stopping else Period() for client in asking]
    robots = [partial(ask, client, seen) for client, seen in zip(asking, counted, strict=True)]
    await pace(robots, period_s, rate_hz)
    if stopping and flood:
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
        await open_again(stopping)
    return period


async def ask(client: WireClient, period: Period) -> float | str:
    """Ask once, and note it; a client whose connection has ended connects again."""
    period.asked += 1
    begin_ns = time.perf_counter_ns()
    try:
        async with asyncio.timeout(REPLY_LIMIT_S):
            await client.ask()
    except FAILURES as error:
        period.errors.append(f'{type(client).__name__}: {error!r:.200}')
        # a refusal is not an end of the connection
        if not isinstance(error, UserError):
            await open_again(client)
        return LOST
    took_ms = (time.perf_counter_ns() - begin_ns) / 1e6
    period.latencies_ms.append(took_ms)
    return took_ms


async def open_again(client: WireClient) -> None:
    """Connect again; a busy router refuses for a while. Raises UserError."""
    with contextlib.suppress(*FAILURES):
        await client.close()
    for _ in range(OPEN_TRIES):
        with contextlib.suppress(UserError):
            await open_all([client])
            return
        await asyncio.sleep(RETRY_S)
    await open_all([client])


async def fill(client: WireClient) -> int:
    """Send without reading until there is no room any more; return how many requests."""
    sent, end_s = 0, time.monotonic() + FLOOD_LIMIT_S
    with contextlib.suppress(*FAILURES):
        while sent < FLOOD_REQUESTS and time.monotonic() < end_s:
            async with asyncio.timeout(BLOCKED_S):
                await client.send()
            sent += 1
    return sent


async def go_on(client: WireClient, period: Period, rate_hz: float) -> None:
    """Keep trying to send at the rate, until cancelled."""
    with contextlib.suppress(*FAILURES):
        while True:
            await client.send()
            period.unread += 1
            await asyncio.sleep(1 / rate_hz)
