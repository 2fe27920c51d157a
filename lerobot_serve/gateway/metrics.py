# SPDX-License-Identifier: Apache-2.0
"""The metrics of the gateway, from its counters. The metrics thread reads."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from lerobot_serve.gateway.counters import GatewayCounters
from lerobot_serve.telemetry.metric_families import counter, gauge, histogram

PROTOCOL = ['protocol']


def collect(counters: GatewayCounters) -> Iterator[Metric]:
    """Yield all families."""
    callers = gauge('gateway_callers', 'callers with an open session', PROTOCOL)
    opened = counter('gateway_sessions_opened', 'sessions opened for callers', PROTOCOL)
    for family, counts in ((callers, counters.callers), (opened, counters.opened)):
        for protocol, count in dict(counts).items():
            family.add_metric([protocol], count)
        yield family
    requests = counter(
        'gateway_requests', 'requests of callers, by protocol and status', ['protocol', 'status']
    )
    refused = counter(
        'gateway_refused',
        'callers and messages refused before they became a request, by reason',
        ['protocol', 'reason'],
    )
    for family, pairs in ((requests, counters.requests), (refused, counters.refused)):
        for labels, count in dict(pairs).items():
            family.add_metric(list(labels), count)
        yield family
    dropped = counter(
        'gateway_dropped_replies', 'replies of the router that no request awaits', ['reason']
    )
    lost = counter(
        'gateway_lost_requests', 'requests that the link to the router did not take', ['reason']
    )
    for family, reasons in ((dropped, counters.dropped), (lost, counters.lost)):
        for reason, count in dict(reasons).items():
            family.add_metric([reason], count)
        yield family
    latency = histogram(
        'gateway_request', 'time from a request of a caller to its prediction', PROTOCOL
    )
    for protocol, durations in dict(counters.latencies).items():
        latency.add_metric([protocol], durations.cumulative(), durations.sum_s)
    yield latency
