"""
The server's metrics for Prometheus, read from what it counts anyway. The endpoint's thread.

`policy_slot` is prod, a or b, and reasons are of a fixed list: the number of series does not grow
with robots or episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client.core import HistogramMetricFamily, Metric

from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.messages import ServerState
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.telemetry import http_endpoint
from lerobot_serve.telemetry.http_endpoint import HttpEndpoint
from lerobot_serve.telemetry.metric_families import counter, gauge, histogram, PREFIX
from lerobot_serve.wire.schema import StateClass
from lerobot_serve_interfaces.msg import ServerStatus

LABELS = ['policy_slot']
Losses = Callable[[], Mapping[str, int]]
NO_LOSSES: Mapping[str, int] = MappingProxyType({})
# field of Statistics -> what it is
COUNTERS = {
    'requests': 'requests of robots',
    'chunks': 'answers with actions',
    'superseded': 'requests that a newer one of the same robot took the place of',
}
STATE_COUNTERS = {
    'cache_hits': 'chunks for which the hidden state of their session was there',
    'cache_misses': 'chunks for which the hidden state of their session was lost',
}
DENOISING_COUNTERS = {'denoise_steps': 'denoising steps that chunks took'}
HISTOGRAMS = {
    'act_latency': ('latency', 'from the arrival of a request to its answer with actions'),
    'queue_wait': ('wait', 'from the arrival of a request until the policy begins on it'),
    'inference': ('inference', 'of the policy, for each chunk; those of one batch share it'),
}


class ServerSnapshot(NamedTuple):
    """The node at one moment."""

    serving: ServerCore | None
    standing: ServerState


def start_endpoint(
    parameters: ServerParameters,
    statistics: ServerStatistics,
    now: Callable[[], ServerSnapshot],
    losses: Losses = dict,
) -> HttpEndpoint | None:
    """
    Return the endpoint, None when none is wanted. `losses` is what the trace itself lost, by
    reason. Raises ParameterError.
    """
    return http_endpoint.start_endpoint(
        parameters,
        lambda: collect(now().serving, statistics, parameters.slot, losses()),
        lambda: why_not_ready(now()),
    )


def why_not_ready(now: ServerSnapshot) -> str:
    """Return why no session could be opened now, empty when one could."""
    if now.serving and now.standing.state == ServerStatus.ACTIVE:
        return ''
    return f'not active: {now.standing.text}'


def collect(
    serving: ServerCore | None,
    statistics: ServerStatistics,
    slot: str,
    losses: Mapping[str, int] = NO_LOSSES,
) -> Iterable[Metric]:
    """Return all metrics; those of a policy that is served only while one is."""
    with statistics.lock:
        found = [*histograms(statistics, slot), *counters(serving, statistics, slot)]
    yield from found
    yield dropped_counter({**statistics.drop_counts(), **losses}, slot)
    if serving:
        yield from gauges(serving, statistics, slot)


def histograms(statistics: ServerStatistics, slot: str) -> Iterable[Metric]:
    """Under the lock of the statistics."""
    for name, (field, text) in HISTOGRAMS.items():
        family, buckets = histogram(name, text, LABELS), getattr(statistics, field)
        family.add_metric([slot], buckets.cumulative(), buckets.sum_s)
        yield family
    text = 'requests in one forward pass of the policy'
    family = HistogramMetricFamily(f'{PREFIX}_batch_size', text, labels=LABELS)
    family.add_metric([slot], statistics.batches.cumulative(), statistics.batches.sum_s)
    yield family


def counters(
    serving: ServerCore | None, statistics: ServerStatistics, slot: str
) -> Iterable[Metric]:
    """Under the lock of the statistics."""
    texts = COUNTERS | (policy_counters(serving.served) if serving else {})
    for name, text in texts.items():
        family = counter(name, text, LABELS)
        family.add_metric([slot], getattr(statistics, name))
        yield family


def policy_counters(served: PolicyDescription) -> dict[str, str]:
    """Return the counters that move for this policy and not for every other one."""
    remembers = served.state_class == StateClass.RECURRENT
    return (STATE_COUNTERS if remembers else {}) | (
        DENOISING_COUNTERS if served.denoise_steps else {}
    )


def dropped_counter(drops: Mapping[str, int], slot: str) -> Metric:
    text = 'what was dropped or failed, by reason'
    family = counter('drops', text, [*LABELS, 'reason'])
    for reason, count in sorted(drops.items()):
        family.add_metric([slot, reason], count)
    return family


def gauges(serving: ServerCore, statistics: ServerStatistics, slot: str) -> Iterable[Metric]:
    report = serving.report()
    waiting = serving.waiting + statistics.executing_requests
    for name, text, value in (
        ('in_flight_requests', 'requests that wait or are being answered', waiting),
        ('sessions', 'robots with an open session', report.active_sessions),
        ('max_sessions', 'robots that can have a session', report.max_sessions),
        ('load_ratio', 'share of the last seconds in which the policy was busy', report.load),
    ):
        family = gauge(name, text, LABELS)
        family.add_metric([slot], value)
        yield family
