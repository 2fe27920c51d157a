# SPDX-License-Identifier: Apache-2.0
"""
What `lerobot-serve plan` simulates of a server that dies, against a router with two servers.

Robots ask in rounds; between two of them one server stops. Who was with it waits until the router
has noticed; afterwards nobody does. Robots that wait are counted, and a wait is one that is nearer
to the router's timeout than to an answer.
"""

from __future__ import annotations

import time

import pytest

from lerobot_serve.contract.schema import Status
from lerobot_serve.tools.plan.demand import FleetDemand, ServiceTime
from lerobot_serve.tools.plan.simulation import simulate_fleet

ROBOTS, INFERENCE_S, NOTICED_S, ROUND_S = 4, 0.04, 2.0, 5.0
ROUNDS, STOPS_BEFORE = 3, 1


def ask_all(rig, robots) -> list[float]:
    """Let every robot ask, and return how long each answer took [s]."""
    begin_s = time.monotonic()
    for robot in robots:
        robot.request()
    took_s: dict[int, float] = {}

    def all_answered() -> bool:
        for number, robot in enumerate(robots):
            if number not in took_s and not robot.chunks.empty():
                assert robot.take().status == Status.OK
                took_s[number] = time.monotonic() - begin_s
        return len(took_s) == len(robots)

    rig.wait(all_answered, 'an answer for each robot')
    return list(took_s.values())


def waiting(answers_s) -> int:
    return sum(latency_s > NOTICED_S / 2 for latency_s in answers_s)


@pytest.mark.alone
def test_robots_of_a_server_that_stops_wait_once(router_rig):
    for name in ('one', 'two'):
        router_rig.server(name, 'prod', policy='p', options=f'&seconds={INFERENCE_S}')
    router_rig.router(
        slot_prod=['one', 'two'],
        reply_timeout_s=NOTICED_S,
        hedge_budget_percent=0.0,
        probe_initial_interval_s=60.0,
    )
    router_rig.wait_for_health('healthy')
    robots = [router_rig.robot(f'robot_{number}') for number in range(ROBOTS)]
    measured = []
    for number in range(ROUNDS):
        if number == STOPS_BEFORE:
            router_rig.hang('one')
        measured.append(ask_all(router_rig, robots))
    fleet = FleetDemand(
        robots=ROBOTS,
        rate_hz=1 / ROUND_S,
        network_s=0.0,
        chunk_s=2 * ROUND_S,
        max_age_s=2 * ROUND_S,
        failover_s=NOTICED_S,
        request_timeout_s=2 * ROUND_S,
        jitter=0.0,
    )
    simulated = simulate_fleet(
        fleet,
        ServiceTime(INFERENCE_S),
        2,
        seconds=ROUNDS * ROUND_S - 1,
        server_loss_at_s=STOPS_BEFORE * ROUND_S,
        begin_s=[0.0] * ROBOTS,
    )
    assert simulated.answered == sum(map(len, measured)) == ROUNDS * ROBOTS
    assert [share.robots for share in simulated.servers] == [0, ROBOTS]
    assert [waiting(round_s) for round_s in measured] == [0, waiting(simulated.latencies_s), 0]
    assert waiting(simulated.latencies_s) == ROBOTS / 2
