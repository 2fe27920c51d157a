# SPDX-License-Identifier: Apache-2.0
"""
What `lerobot-serve plan` simulates against what a policy server does, at small scale.

Robots ask at a rate whatever comes, each at a point of the period of its own. How long a request
keeps the server busy is measured, as who plans would do it, so that a machine that is slow today
is slow in both. Counts are compared, no times.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
import time

import pytest

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.tools.plan.demand import FleetDemand, ServiceTime, SimulationResult
from lerobot_serve.tools.plan.simulation import simulate_fleet

ROBOTS, INFERENCE_S, SECONDS = 6, 0.04, 4.0
# of all requests
CLOSE = 0.2
# less than the server can answer one by one, and more
CALM_HZ, BUSY_HZ = 2.0, 8.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a server counted in so many seconds, and how long a batch kept it busy."""

    seconds: float
    requests: int
    chunks: int
    superseded: int
    busy_s: float


def measure(rig, rate_hz: float, **parameters: object) -> Measured:
    """Let the robots ask, and return what became of it when all has ended."""
    path = rig.steering.path(seconds=INFERENCE_S)
    rig.start(policy_kind='steered', policy_path=path, **parameters)
    robots = rig.clients(ROBOTS)
    begin_s, sent = time.monotonic(), 0
    for turn in range(round(SECONDS * rate_hz)):
        for number, robot in enumerate(robots):
            left_s = begin_s + (turn + number / ROBOTS) / rate_hz - time.monotonic()
            if left_s < -1 / rate_hz:
                # this machine stood still; all that was missed, at once, would be another load
                continue
            time.sleep(max(0.0, left_s))
            robot.request()
            sent += 1
    # the time of the last one's turn belongs to it
    seconds = time.monotonic() - begin_s + 1 / rate_hz / ROBOTS
    rig.wait(lambda: all_ended(rig, sent), 'the end of every request')
    status = rig.status()
    assert not status.dropped
    return Measured(seconds, sent, status.chunks, status.superseded, busy_s(robots))


def all_ended(rig, sent: int) -> bool:
    status = rig.status()
    return status.requests == sent == status.chunks + status.superseded


def busy_s(robots) -> float:
    """Return how long answering took on average."""
    raws = [robot.chunks.get_nowait() for robot in robots for _ in range(robot.chunks.qsize())]
    chunks = [wire_chunk.decode(raw) for raw in raws]
    return mean(chunk.inference_ms + chunk.processing_ms for chunk in chunks) / 1e3


def planned(measured: Measured, batch: int = 1, window_s: float = 0.0) -> SimulationResult:
    """Return what the simulation says of the same robots and this server."""
    fleet = FleetDemand(
        robots=ROBOTS,
        rate_hz=measured.requests / ROBOTS / measured.seconds,
        network_s=0.0,
        chunk_s=1.0,
        max_age_s=3.0,
        failover_s=1.0,
        request_timeout_s=0.0,
        jitter=0.0,
    )
    return simulate_fleet(
        fleet,
        ServiceTime(measured.busy_s, 0.0, batch, window_s),
        1,
        seconds=measured.seconds,
        begin_s=[number / ROBOTS * fleet.period_s for number in range(ROBOTS)],
    )


def expect_alike(measured: Measured, simulated: SimulationResult) -> None:
    close = CLOSE * measured.requests
    assert simulated.requests == pytest.approx(measured.requests, abs=ROBOTS)
    assert simulated.chunks == pytest.approx(measured.chunks, abs=close)
    assert simulated.superseded == pytest.approx(measured.superseded, abs=close)


@pytest.mark.alone
def test_a_server_with_time_to_spare_answers_all(rig):
    measured = measure(rig, CALM_HZ)
    simulated = planned(measured)
    expect_alike(measured, simulated)
    assert simulated.superseded == 0
    assert simulated.busy_share < 0.8
    assert measured.chunks >= (1 - CLOSE) * measured.requests


@pytest.mark.alone
def test_a_server_that_is_asked_too_much_answers_what_it_can(rig):
    measured = measure(rig, BUSY_HZ)
    simulated = planned(measured)
    expect_alike(measured, simulated)
    assert simulated.busy_share == pytest.approx(1, abs=0.05)
    # one after the other, from the first to the last
    assert measured.chunks * measured.busy_s == pytest.approx(measured.seconds, rel=0.2)
    assert measured.superseded > CLOSE * measured.requests


@pytest.mark.alone
def test_in_batches_the_same_server_keeps_up(rig):
    wait_ms = 5.0
    batches = {
        'scheduler': 'dynamic_batching',
        'max_batch_size': ROBOTS,
        'max_batch_delay_ms': wait_ms,
    }
    measured = measure(rig, BUSY_HZ, **batches)
    simulated = planned(measured, ROBOTS, wait_ms / 1e3)
    expect_alike(measured, simulated)
    assert measured.superseded < CLOSE * measured.requests
