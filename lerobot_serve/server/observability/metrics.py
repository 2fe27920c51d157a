# SPDX-License-Identifier: Apache-2.0
"""
Prometheus metrics of the server, read from its statistics. HTTP thread.

`slot` is prod, a or b and reasons come from a fixed list, so the number of series does not
grow with clients or episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client.core import HistogramMetricFamily, Metric

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.messages import ServerState
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.telemetry import http_endpoint
from lerobot_serve.telemetry.http_endpoint import HttpEndpoint, Reason
from lerobot_serve.telemetry.metric_families import (
    counter,
    gauge,
    histogram,
    PREFIX,
    refused_by_quota,
)
from lerobot_serve_interfaces.msg import ServerStatus

LABELS = ['slot']
Losses = Callable[[], Mapping[str, int]]
NO_LOSSES: Mapping[str, int] = MappingProxyType({})
# field of ServerStatistics -> name of the metric, help text
COUNTERS = {
    'requests': ('requests', 'requests of clients'),
    'chunks': ('chunks', 'replies with actions'),
    'superseded': ('requests_superseded', 'requests replaced by a newer one of the same client'),
}
STATE_COUNTERS = {
    'recurrent_state_hits': (
        'recurrent_state_hits',
        'chunks whose session had its recurrent state',
    ),
    'recurrent_state_misses': ('recurrent_state_misses', 'chunks whose session had lost it'),
}
CACHE_COUNTERS = {
    'cache_hits': ('cache_hits', 'camera images whose embedding was in the cache'),
    'cache_misses': ('cache_misses', 'camera images that were embedded and not in the cache'),
}
SWAP_OUTCOMES = ('done', 'failed')
DENOISING_COUNTERS = {'denoise_steps': ('denoising_steps', 'denoising steps of all chunks')}
HISTOGRAMS = {
    'server_reply_latency': ('latency', 'time from the arrival of a request to its chunk'),
    'server_queue_wait': ('wait', 'time from the arrival of a request to its inference'),
    'server_inference': ('inference', 'inference time of each chunk, shared in a batch'),
}


class ServerSnapshot(NamedTuple):
    """The core and the state of the node, read together."""

    core: ServerCore | None
    server_state: ServerState


def start_endpoint(
    parameters: ServerParameters,
    statistics: ServerStatistics,
    now: Callable[[], ServerSnapshot],
    losses: Losses,
    why_not_alive: Reason,
) -> HttpEndpoint | None:
    """
    Return the endpoint, None if disabled. `losses` are the records the trace lost, by reason.

    Raises ParameterError.
    """
    return http_endpoint.start_endpoint(
        parameters,
        lambda: collect(now().core, statistics, parameters.slot, losses()),
        keys=parameters.zenoh_keys,
        why_not_ready=lambda: why_not_ready(now()),
        why_not_alive=why_not_alive,
    )


def why_not_ready(now: ServerSnapshot) -> str:
    """Return why the server accepts no sessions; empty if it does."""
    if now.core and now.server_state.state == ServerStatus.ACTIVE:
        return ''
    return f'not active: {now.server_state.text}'


def collect(
    core: ServerCore | None,
    statistics: ServerStatistics,
    slot: str,
    losses: Mapping[str, int] = NO_LOSSES,
) -> Iterable[Metric]:
    """Return all metrics; those of the policy only while one is served."""
    with statistics.lock:
        found = [*histograms(statistics, slot), *counters(core, statistics, slot)]
    yield from found
    yield dropped_counter({**statistics.drop_counts(), **losses}, slot)
    if core:
        yield from gauges(core, statistics, slot)
        yield refused_by_quota('server', core.quotas.refusals(), {'slot': slot})


def histograms(statistics: ServerStatistics, slot: str) -> Iterable[Metric]:
    """Return the metrics; call under the lock of the statistics."""
    for name, (field, text) in HISTOGRAMS.items():
        family, buckets = histogram(name, text, LABELS), getattr(statistics, field)
        family.add_metric([slot], buckets.cumulative(), buckets.sum_s)
        yield family
    text = 'requests in one forward pass of the policy'
    family = HistogramMetricFamily(f'{PREFIX}_server_batch_size', text, labels=LABELS)
    family.add_metric([slot], statistics.batches.cumulative(), statistics.batches.sum_s)
    yield family


def counters(core: ServerCore | None, statistics: ServerStatistics, slot: str) -> Iterable[Metric]:
    """Return the metrics; call under the lock of the statistics."""
    texts = COUNTERS | (policy_counters(core.description) if core else {})
    for field, (name, text) in texts.items():
        family = counter(f'server_{name}', text, LABELS)
        family.add_metric([slot], getattr(statistics, field))
        yield family
    yield swap_counter(statistics, slot)


def swap_counter(statistics: ServerStatistics, slot: str) -> Metric:
    text = 'swaps of the policy by the service swap_policy, by outcome: done or failed'
    family = counter('server_policy_swaps', text, [*LABELS, 'outcome'])
    for outcome in SWAP_OUTCOMES:
        family.add_metric([slot, outcome], statistics.swaps[outcome])
    return family


def policy_counters(description: PolicyDescription) -> dict[str, tuple[str, str]]:
    """Return the counters that apply to this policy only."""
    remembers = description.state_class == StateClass.RECURRENT
    return (
        (STATE_COUNTERS if remembers else {})
        | (CACHE_COUNTERS if description.embedding_cache_bytes else {})
        | (DENOISING_COUNTERS if description.denoise_steps else {})
    )


def dropped_counter(drops: Mapping[str, int], slot: str) -> Metric:
    text = 'dropped or failed requests, by reason'
    family = counter('server_dropped', text, [*LABELS, 'reason'])
    for reason, count in sorted(drops.items()):
        family.add_metric([slot, reason], count)
    return family


def gauges(core: ServerCore, statistics: ServerStatistics, slot: str) -> Iterable[Metric]:
    report = core.load_report()
    waiting = core.waiting_requests + statistics.executing_requests
    for name, text, value in (
        ('server_in_flight_requests', 'requests queued or executing', waiting),
        ('server_sessions', 'open sessions', report.active_sessions),
        ('server_max_sessions', 'maximum number of open sessions', report.max_sessions),
        ('server_load_ratio', 'share of the last 10 s in which the policy was busy', report.load),
    ):
        family = gauge(name, text, LABELS)
        family.add_metric([slot], value)
        yield family
