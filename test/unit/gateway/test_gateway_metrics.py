# SPDX-License-Identifier: Apache-2.0
"""The metrics of a gateway say what was counted, and the parameters reach the doors."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
import pytest
from support.golden import listed

from lerobot_serve.gateway.counters import collect, GatewayCounters
from lerobot_serve.gateway.parameters import door_settings, GatewayParameters
from lerobot_serve.parameters import build_parameters
from lerobot_serve.telemetry.http_endpoint import FunctionCollector


def test_everything_counted_is_in_the_metrics():
    counters = GatewayCounters()
    counters.callers['http'] = 2
    counters.opened['http'] = 3
    counters.note_request('http', 'ok', 0.02)
    counters.note_request('http', 'too_late', 5.0)
    counters.refused['openpi', 'max_callers'] = 4
    counters.note_dropped('late_chunk')
    counters.note_lost('link_full')
    registry = CollectorRegistry()
    registry.register(FunctionCollector(lambda: collect(counters)))
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'lerobot_serve_gateway_callers{protocol="http"} 2.0',
        'lerobot_serve_gateway_sessions_opened_total{protocol="http"} 3.0',
        'lerobot_serve_gateway_requests_total{protocol="http",status="ok"} 1.0',
        'lerobot_serve_gateway_requests_total{protocol="http",status="too_late"} 1.0',
        'lerobot_serve_gateway_refused_total{protocol="openpi",reason="max_callers"} 4.0',
        'lerobot_serve_gateway_dropped_replies_total{reason="late_chunk"} 1.0',
        'lerobot_serve_gateway_lost_requests_total{reason="link_full"} 1.0',
        'lerobot_serve_gateway_request_seconds_bucket{le="0.025",protocol="http"} 1.0',
        'lerobot_serve_gateway_request_seconds_count{protocol="http"} 1.0',
        'lerobot_serve_gateway_request_seconds_sum{protocol="http"} 0.02',
    ):
        assert line in lines


@pytest.mark.golden
def test_the_metrics_are_what_was_agreed(golden):
    golden.holds('metrics/gateway.txt', listed(collect(GatewayCounters())))


def test_a_door_gets_its_own_parameters_by_their_short_names():
    given = {'doors': ['groot', 'http'], 'http.port': 9000, 'groot.port': 9001}
    parameters = build_parameters(GatewayParameters, given)
    settings = door_settings(parameters, 'http')
    assert settings.port == 9000
    assert door_settings(parameters, 'groot').port == 9001
