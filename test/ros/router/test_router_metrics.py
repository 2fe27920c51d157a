# SPDX-License-Identifier: Apache-2.0
"""The router's metrics, read over HTTP: each of them moves."""

from __future__ import annotations

import socket
from urllib.error import HTTPError

import pytest
from support.network.metrics_page import metrics, page
from support.network.ports import free_port

from lerobot_serve.contract.data_path.execution_report import encode, ExecutionReport
from lerobot_serve_interfaces.msg import EpisodeOutcome

SLOTS = ('a', 'b')


@pytest.fixture
def port() -> int:
    return free_port()


def test_every_figure_of_a_slot_has_its_name_and_moves(router_rig, port):
    router_rig.slots(metrics_port=port, slot_unhealthy_threshold=100)
    client = router_rig.robot()
    before = metrics(port, 'lerobot_serve_router_')
    for slot in SLOTS:
        for number in range(2):
            told = encode(ExecutionReport(actions=10 * number, fallbacks=number, trips=number))
            client.round_trip(episode_id=router_rig.episode(slot), extensions=(told,))
        client.round_trip(episode_id=router_rig.episode(slot), task='nan')
        answer = router_rig.report(router_rig.episode(slot), EpisodeOutcome.SUCCESS)
        assert answer.accepted, answer.text
    now = metrics(port, 'lerobot_serve_router_')

    def grown(name: str, *labels: str) -> float:
        key = (name, *labels)
        return now[key] - before.get(key, 0.0)

    for slot in SLOTS:
        assert grown('reply_latency_seconds_count', slot) == 2
        assert grown('reply_latency_seconds_sum', slot) > 0
        assert grown('reply_latency_seconds_bucket', '+Inf', slot) == 2
        assert grown('requests_total', slot) == 3
        assert grown('chunks_total', slot) == 2
        assert grown('episodes_total', slot) == 1
        assert (grown('placement_hits_total', slot), grown('placement_misses_total', slot)) == (
            2,
            1,
        )
        assert grown('requests_failed_total', 'not_finite', slot) == 1
        assert grown('episodes_ended_total', 'success', slot) == 1
        assert grown('commands_total', slot) == 10
        assert (grown('fallback_commands_total', slot), grown('cage_trips_total', slot)) == (1, 1)
        replica = (f'/{slot}/policy_server', slot)
        assert grown('replica_requests_total', *replica) == 3
        assert now[('replica_ready', *replica)] == 1
        assert now[('replica_sessions', *replica)] == 1
        assert now['traffic_share', slot] == 0.5
        assert now['in_flight_requests', slot] == 0
    assert now['sessions',] == 1
    assert now['split_ratio',] == 0.5
    assert now['canary_state', 'off'] == 1


def test_alive_and_ready_are_told_apart(router_rig, port):
    router_rig.router(slot_prod=['one'], metrics_port=port, discovery_timeout_s=0.0)
    router_rig.wait_for_health('unavailable')
    assert page(port, '/healthz') == 'alive\n'
    with pytest.raises(HTTPError) as error:
        page(port, '/readyz')
    assert error.value.code == 503
    assert 'no status received' in error.value.read().decode()
    router_rig.server('one', 'prod')
    router_rig.wait_for_health('healthy')
    assert page(port, '/readyz') == 'ready\n'


def test_a_port_that_is_taken_is_refused_in_one_line(router_rig, port):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', port))
        taken.listen()
        started = router_rig.router(slot_prod=['one'], metrics_port=port)
        assert started.wait(30) == 1
    assert f'metrics_port {port}' in router_rig.log('router')
    assert 'Traceback' not in router_rig.log('router')
