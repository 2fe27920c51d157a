# SPDX-License-Identifier: Apache-2.0
"""
What the gateway counts, and the metrics of it. The event loop adds, also threads of the link what
it loses; the metrics thread reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
import threading

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lerobot_serve.telemetry.durations import Histogram
from lerobot_serve.telemetry.metric_families import counter, gauge, histogram

OK = 'ok'


@dataclass(slots=True)
class GatewayCounters:
    """
    requests   by (protocol, status); status is ok or a Status
    refused    by (protocol, reason): what never became a request
    latencies  of answered requests, by protocol
    callers    open sessions now, by protocol
    opened     sessions opened, by protocol
    dropped    replies of the router without a request, by reason
    lost       requests that the link to the router did not take, by reason
    """

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    latencies: dict[str, Histogram] = field(default_factory=dict)
    callers: Counter[str] = field(default_factory=Counter)
    opened: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note_dropped(self, reason: str) -> None:
        self.dropped[reason] += 1

    def note_lost(self, reason: str) -> None:
        """Count a request that the link did not take; any thread."""
        with self._lock:
            self.lost[reason] += 1

    def note_request(self, protocol: str, status: str, duration_s: float) -> None:
        """Count a request with its end."""
        self.requests[protocol, status] += 1
        if status == OK:
            if protocol not in self.latencies:
                self.latencies[protocol] = Histogram()
            self.latencies[protocol].add(duration_s)


MakeFamily = Callable[[str, str, list[str]], CounterMetricFamily | GaugeMetricFamily]
# field of the counters -> kind of metric, its name, what it counts, labels
FAMILIES: dict[str, tuple[MakeFamily, str, str, str]] = {
    'callers': (gauge, 'gateway_callers', 'callers with an open session', 'protocol'),
    'opened': (counter, 'gateway_sessions_opened', 'sessions opened for callers', 'protocol'),
    'requests': (
        counter,
        'gateway_requests',
        'requests of callers, by protocol and status',
        'protocol status',
    ),
    'refused': (
        counter,
        'gateway_refused',
        'callers and messages refused before they became a request, by reason',
        'protocol reason',
    ),
    'dropped': (
        counter,
        'gateway_dropped_replies',
        'replies of the router that no request awaits',
        'reason',
    ),
    'lost': (
        counter,
        'gateway_lost_requests',
        'requests that the link to the router did not take',
        'reason',
    ),
}


def collect(counters: GatewayCounters) -> Iterator[Metric]:
    """Yield all families."""
    for field_name, (kind, name, text, labels) in FAMILIES.items():
        family = kind(name, text, labels.split())
        for key, count in dict(getattr(counters, field_name)).items():
            family.add_metric([key] if isinstance(key, str) else list(key), count)
        yield family
    latency = histogram(
        'gateway_request', 'time from a request of a caller to its prediction', ['protocol']
    )
    for protocol, durations in dict(counters.latencies).items():
        latency.add_metric([protocol], durations.cumulative(), durations.sum_s)
    yield latency
