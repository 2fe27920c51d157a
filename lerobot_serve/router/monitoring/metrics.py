# SPDX-License-Identifier: Apache-2.0
"""
Prometheus metrics of the router, read from its counters. The endpoint's thread.

`slot` is prod, a or b. Replicas are named as in the parameters, reasons are of a fixed
list: the number of series does not grow with robots or episodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import Protocol

from prometheus_client.core import Metric

from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.replicas.replica import ReplicaState
from lerobot_serve.router.runtime import RouterRuntime
from lerobot_serve.telemetry import http_endpoint
from lerobot_serve.telemetry.http_endpoint import HttpEndpoint
from lerobot_serve.telemetry.metric_families import counter, gauge, histogram

# field of SlotStats -> name of the metric, help text
SLOT_COUNTERS = {
    'episodes': ('episodes', 'episodes placed'),
    'requests': ('requests', 'requests of clients'),
    'answers': ('chunks', 'replies with actions'),
    'moved': ('episodes_moved', 'episodes that moved to another slot'),
    'cache_hits': ('placement_hits', 'requests of an episode that was placed before'),
    'cache_misses': ('placement_misses', 'requests with which an episode was placed'),
    'commands': ('commands', 'commands that robots reported'),
    'fallbacks': ('fallback_commands', 'commands among them from the fallback ladder'),
    'trips': ('cage_trips', 'commands among them that the safety cage changed'),
    'stalls': ('stalls', 'stalls that robots reported'),
}
# field of Replica.counts -> the same
REPLICA_COUNTERS = {
    'requests': ('requests', 'requests sent to a replica'),
    'answers': ('chunks', 'replies with actions of a replica'),
    'failures': ('requests_failed', 'requests that a replica failed'),
    'hedges': ('hedges', 'hedged requests sent to a replica'),
    'probes': ('probes', 'probes sent to a replica'),
}


class MetricsHost(Protocol):
    """The node, as its metrics need it."""

    routing: RouterRuntime | None
    # a state of ServerStatus, and in words
    standing: tuple[int, str]


def serve(
    parameters: RouterParameters, host: MetricsHost, drops: DropCounters
) -> HttpEndpoint | None:
    """Return the endpoint, None when it is disabled. Raises ParameterError."""
    return http_endpoint.start_endpoint(
        parameters,
        lambda: collect(host.routing, drops.counts() | trace_losses(host.routing)),
        lambda: not_ready_reason(host),
    )


def trace_losses(routing: RouterRuntime | None) -> dict[str, int]:
    """Return what the trace itself lost, by reason."""
    return routing.recorder.writer.losses if routing and routing.recorder else {}


def not_ready_reason(host: MetricsHost) -> str:
    """Return why no session could be opened now, empty when one could."""
    routing = host.routing
    if routing is None or not routing.is_open:
        return f'not active: {host.standing[1]}'
    slots = routing.core.slots.values()
    if any(slot.is_healthy for slot in slots):
        return ''
    return '; '.join(f'slot {slot.name}: {slot.text}' for slot in slots)


def collect(routing: RouterRuntime | None, drops: dict[str, int]) -> Iterable[Metric]:
    """Return all metrics; those of slots only while the node is configured."""
    yield dropped(drops)
    if routing is None:
        return
    core = routing.core
    with core.dispatcher.lock:
        found = [*slot_metrics(core), *replica_metrics(core)]
    yield from found
    yield from router_metrics(core)
    yield canary_state(core)
    if routing.feed:
        yield from shadow_metrics(routing)


def dropped(drops: dict[str, int]) -> Metric:
    family = counter('router_dropped', 'what was dropped or failed, by reason', ['reason'])
    for reason, count in sorted(drops.items()):
        family.add_metric([reason], count)
    return family


def slot_metrics(core: RouterCore) -> list[Metric]:
    """Under the dispatcher's lock."""
    latency = histogram(
        'router_reply_latency', 'from the arrival of a request to its reply', ['slot']
    )
    families = {
        field: counter(f'router_{name}', text, ['slot'])
        for field, (name, text) in SLOT_COUNTERS.items()
    }
    failed = counter('router_requests_failed', 'requests that a slot failed', ['slot', 'reason'])
    ended = counter('router_episodes_ended', 'ended episodes, by outcome', ['slot', 'outcome'])
    share = gauge('router_traffic_share', 'share of new episodes now', ['slot'])
    healthy = gauge('router_slot_healthy', '1 when it takes new episodes', ['slot'])
    in_flight = gauge('router_in_flight_requests', 'requests in flight', ['slot'])
    shares = core.shares()
    flying = core.dispatcher.in_flight.count_by_slot()
    for slot in core.slots.values():
        name, stats = [slot.name], core.stats.slot(slot.name)
        latency.add_metric(name, stats.buckets.cumulative(), stats.buckets.sum_s)
        for field, family in families.items():
            family.add_metric(name, getattr(stats, field))
        for reason, count in stats.failed.items():
            failed.add_metric([*name, reason], count)
        for outcome, count in stats.ended.items():
            ended.add_metric([*name, outcome], count)
        share.add_metric(name, shares[slot.name] / 100)
        healthy.add_metric(name, slot.is_healthy)
        in_flight.add_metric(name, flying.get(slot.name, 0))
    return [latency, *families.values(), failed, ended, share, healthy, in_flight]


def replica_metrics(core: RouterCore) -> list[Metric]:
    """Under the dispatcher's lock."""
    labels = ['slot', 'replica']
    ready = gauge('router_replica_ready', '1 when it receives requests', labels)
    sessions = gauge('router_replica_sessions', 'sessions that the router has open there', labels)
    families = {
        field: counter(f'router_replica_{name}', text, labels)
        for field, (name, text) in REPLICA_COUNTERS.items()
    }
    for replica in core.replicas.values():
        named = [replica.slot, replica.name]
        ready.add_metric(named, replica.state is ReplicaState.READY)
        sessions.add_metric(named, replica.sessions)
        for field, family in families.items():
            family.add_metric(named, replica.counts[field])
    return [ready, sessions, *families.values()]


def router_metrics(core: RouterCore) -> list[Metric]:
    dispatcher = core.dispatcher
    return [
        gauge('router_sessions', 'open sessions of clients', value=len(dispatcher.robots)),
        gauge(
            'router_split_ratio',
            'share of new episodes meant for slot a',
            value=core.parameters.split_percent / 100,
        ),
        counter('router_hedges', 'hedged requests', value=dispatcher.forwarder.hedges),
        counter(
            'router_hedges_won',
            'hedged requests whose second copy was answered first',
            value=dispatcher.hedges_won,
        ),
    ]


def canary_state(core: RouterCore) -> Metric:
    family = gauge('router_canary_state', '1 for the current state', ['state'])
    for state in type(core.canary.canary.state):
        family.add_metric([state.value], state is core.canary.canary.state)
    return family


def shadow_metrics(routing: RouterRuntime) -> list[Metric]:
    summary = routing.feed.summary()
    made = [
        gauge(
            'router_shadow_hours', 'hours that the policy has been in shadow', value=summary.hours
        ),
        counter('router_shadow_samples', 'comparisons', value=summary.samples),
        counter(
            'router_shadow_cage_trips', 'comparisons that would trip the cage', value=summary.trips
        ),
    ]
    means = {
        'router_shadow_divergence': summary.divergence_mean,
        'router_shadow_divergence_in_spreads': summary.divergence_in_spreads_mean,
    }
    text = 'mean over all comparisons'
    return made + [gauge(name, text, value=v) for name, v in means.items() if not isnan(v)]
