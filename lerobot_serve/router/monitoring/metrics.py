# SPDX-License-Identifier: Apache-2.0
"""
Collect the Prometheus metrics of the router from its counters. The thread of the endpoint.

The label `slot` is prod, a or b; replicas are named as in the parameters; reasons are from a fixed
list. The number of series does not grow with robots or episodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

from prometheus_client.core import Metric

from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.core import RouterCore, RouterHost
from lerobot_serve.router.data_path.hedging import Hedging
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.replicas.replica import ReplicaState
from lerobot_serve.router.shared_state.shared_state import SharedState
from lerobot_serve.telemetry import http_endpoint
from lerobot_serve.telemetry.http_endpoint import HttpEndpoint, Reason
from lerobot_serve.telemetry.metric_families import (
    counter,
    gauge,
    histogram,
    refused_by_quota,
)
from lerobot_serve_interfaces.msg import ShadowSummary

SITE_ROUTERS = 'routers of the site that this one sees, itself among them'
# field of SlotCounters -> name of the metric, help text
SLOT_COUNTERS = {
    'episodes': ('episodes', 'episodes placed'),
    'requests': ('requests', 'requests of clients'),
    'chunks': ('chunks', 'replies with actions'),
    'moved': ('episodes_moved', 'episodes that moved to another slot'),
    'cache_hits': ('placement_hits', 'requests of an episode that was placed before'),
    'cache_misses': ('placement_misses', 'requests with which an episode was placed'),
    'commands': ('commands', 'commands that robots reported'),
    'fallbacks': ('fallback_commands', 'commands among them from the fallback ladder'),
    'trips': ('cage_trips', 'commands among them that the safety cage changed'),
    'stalls': ('stalls', 'stalls that robots reported'),
}
# key of Replica.counts -> name of the metric, help text
REPLICA_COUNTERS = {
    'requests': ('requests', 'requests sent to a replica'),
    'chunks': ('chunks', 'replies with actions of a replica'),
    'failures': ('requests_failed', 'requests that a replica failed'),
    'hedges': ('hedges', 'hedged requests sent to a replica'),
    'probes': ('probes', 'probes sent to a replica'),
}


def serve(
    parameters: RouterParameters, host: RouterHost, drops: DropCounters, why_not_alive: Reason
) -> HttpEndpoint | None:
    """Start and return the endpoint; None when it is disabled. Raises ParameterError."""
    return http_endpoint.start_endpoint(
        parameters,
        lambda: collect(
            host.core, drops.counts() | trace_losses(host.core) | state_losses(host.core)
        ),
        keys=parameters.zenoh_keys,
        why_not_ready=lambda: not_ready_reason(host),
        why_not_alive=why_not_alive,
    )


def trace_losses(core: RouterCore | None) -> dict[str, int]:
    """Return the number of lost trace records by reason."""
    return core.recorder.writer.losses if core and core.recorder else {}


def state_losses(core: RouterCore | None) -> dict[str, int]:
    """Return what the store never got, by reason."""
    if core is None:
        return {}
    # also 0: an increase is seen only from a sample before it
    return {'state_abandoned': core.writer.abandoned, 'state_conflict': core.writer.conflicts}


def not_ready_reason(host: RouterHost) -> str:
    """Return why the router cannot serve a session now; empty when it can."""
    core = host.core
    if core is None or not core.is_open:
        return f'not active: {host.server_state[1]}'
    slots = core.slots.values()
    if any(slot.is_healthy for slot in slots):
        return ''
    return '; '.join(f'slot {slot.name}: {slot.text}' for slot in slots)


def collect(core: RouterCore | None, drops: dict[str, int]) -> Iterable[Metric]:
    """Yield all metrics; only `router_dropped` while the node is not configured."""
    yield dropped(drops)
    if core is None:
        return
    with core.table.lock:
        shares = core.table.shares(core.now_ns)
        metrics = [*slot_metrics(core.table, shares), *replica_metrics(core.table)]
    yield from metrics
    yield from router_metrics(core.table, core.dispatcher.hedging)
    yield gauge(
        'router_decisions_durable',
        '1 when a restart finds all decisions again',
        value=not core.writer.text,
    )
    yield canary_state(core.canary.canary.state)
    yield refused_by_quota('router', core.table.quotas.refusals())
    if core.shared:
        yield from shared_state_metrics(core.shared)
    if core.feed:
        yield from shadow_metrics(core.feed.comparator.summary())


def dropped(drops: dict[str, int]) -> Metric:
    family = counter('router_dropped', 'what was dropped or failed, by reason', ['reason'])
    for reason, count in sorted(drops.items()):
        family.add_metric([reason], count)
    return family


def slot_metrics(table: RoutingTable, shares: dict[str, int]) -> list[Metric]:
    """Return the metrics of the slots. Under RoutingTable.lock."""
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
    requests_in_flight = table.in_flight.count_by_slot()
    for slot in table.slots.values():
        name, stats = [slot.name], table.stats.slot(slot.name)
        latency.add_metric(name, stats.buckets.cumulative(), stats.buckets.sum_s)
        for field, family in families.items():
            family.add_metric(name, getattr(stats, field))
        for reason, count in stats.failed.items():
            failed.add_metric([*name, reason], count)
        for outcome, count in stats.ended.items():
            ended.add_metric([*name, outcome], count)
        share.add_metric(name, shares[slot.name] / 100)
        healthy.add_metric(name, slot.is_healthy)
        in_flight.add_metric(name, requests_in_flight.get(slot.name, 0))
    return [latency, *families.values(), failed, ended, share, healthy, in_flight]


def replica_metrics(table: RoutingTable) -> list[Metric]:
    """Return the metrics of the replicas. Under RoutingTable.lock."""
    labels = ['slot', 'replica']
    ready = gauge('router_replica_ready', '1 when it receives requests', labels)
    sessions = gauge('router_replica_sessions', 'sessions that the router has open there', labels)
    families = {
        field: counter(f'router_replica_{name}', text, labels)
        for field, (name, text) in REPLICA_COUNTERS.items()
    }
    for replica in table.replicas.values():
        named = [replica.slot, replica.name]
        ready.add_metric(named, replica.state is ReplicaState.READY)
        sessions.add_metric(named, replica.sessions)
        for field, family in families.items():
            family.add_metric(named, replica.counts[field])
    return [ready, sessions, *families.values()]


def router_metrics(table: RoutingTable, hedging: Hedging) -> list[Metric]:
    first = 'hedged requests with the first reply to the second copy'
    share = table.rules.split_percent / 100
    return [
        gauge('router_sessions', 'open sessions of clients', value=len(table.sessions)),
        gauge('router_split_ratio', 'share of new episodes configured for slot a', value=share),
        counter('router_hedges', 'hedged requests', value=hedging.hedges),
        counter('router_hedges_won', first, value=hedging.won),
    ]


def shared_state_metrics(shared: SharedState) -> list[Metric]:
    found = {
        'site_routers': (SITE_ROUTERS, shared.routers),
        'leads_rollout': ('1 when this router runs the rollout of its site', shared.leads),
        'shared_state_up': ('1 when the shared state is heard of', not shared.is_away),
    }
    return [gauge(f'router_{name}', text, value=value) for name, (text, value) in found.items()]


def canary_state(now: CanaryPhase) -> Metric:
    family = gauge('router_canary_state', '1 for the current state', ['state'])
    for state in CanaryPhase:
        family.add_metric([state.word], state is now)
    return family


def shadow_metrics(summary: ShadowSummary) -> list[Metric]:
    hours, trips = summary.hours_in_shadow, summary.cage_trips
    made = [
        gauge('router_shadow_hours', 'hours that the policy has been in shadow', value=hours),
        counter('router_shadow_samples', 'comparisons', value=summary.samples),
        counter('router_shadow_cage_trips', 'comparisons that would trip the cage', value=trips),
    ]
    means = {
        'router_shadow_divergence': summary.divergence_mean,
        'router_shadow_divergence_in_spreads': summary.divergence_in_spreads_mean,
    }
    text = 'mean over all comparisons'
    return made + [gauge(name, text, value=v) for name, v in means.items() if not isnan(v)]
