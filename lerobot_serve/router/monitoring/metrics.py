"""
Prometheus metrics of the router, read from its counters. The endpoint's thread.

`policy_slot` is prod, a or b. Replicas are named as in the parameters, reasons are of a fixed
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

# of a slot: field of SlotTally -> what it is
SLOT_COUNTERS = {
    'episodes': 'episodes placed',
    'requests': 'requests of clients',
    'answers': 'replies with actions',
    'moved': 'episodes that moved to another slot',
    'cache_hits': 'requests of an episode whose slot was known',
    'cache_misses': 'requests with which an episode was placed',
    'commands': 'commands that robots reported',
    'fallbacks': 'commands of those from the fallback ladder',
    'trips': 'commands of those that the safety cage changed',
    'stalls': 'times that a robot ran out of actions',
}
REPLICA_COUNTERS = {
    'requests': 'requests sent to a replica',
    'answers': 'replies with actions of a replica',
    'failures': 'requests that a replica failed',
    'hedges': 'hedged requests sent to a replica',
    'probes': 'probes sent to a replica',
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
    family = counter('drops', 'what was dropped or failed, by reason', ['reason'])
    for reason, count in sorted(drops.items()):
        family.add_metric([reason], count)
    return family


def slot_metrics(core: RouterCore) -> list[Metric]:
    """Under the dispatcher's lock."""
    latency = histogram(
        'act_latency', 'from the arrival of a request to its reply', ['policy_slot']
    )
    families = {name: counter(name, text, ['policy_slot']) for name, text in SLOT_COUNTERS.items()}
    failed = counter('failed', 'requests that a slot failed', ['policy_slot', 'reason'])
    ended = counter('episodes_ended', 'episodes by how they ended', ['policy_slot', 'outcome'])
    share = gauge('share_ratio', 'share of new episodes now', ['policy_slot'])
    healthy = gauge('slot_healthy', '1 when it takes new episodes', ['policy_slot'])
    in_flight = gauge('in_flight_requests', 'requests in flight', ['policy_slot'])
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
    labels = ['policy_slot', 'replica']
    ready = gauge('replica_ready', '1 when it receives requests', labels)
    sessions = gauge('replica_sessions', 'sessions that the router has open there', labels)
    families = {
        name: counter(f'replica_{name}', text, labels) for name, text in REPLICA_COUNTERS.items()
    }
    for replica in core.replicas.values():
        named = [replica.slot, replica.name]
        ready.add_metric(named, replica.state is ReplicaState.READY)
        sessions.add_metric(named, replica.sessions)
        for name, family in families.items():
            family.add_metric(named, replica.counts[name])
    return [ready, sessions, *families.values()]


def router_metrics(core: RouterCore) -> list[Metric]:
    dispatcher = core.dispatcher
    return [
        gauge('robots', 'clients with an open session', value=len(dispatcher.robots)),
        gauge(
            'split_ratio',
            'share of new episodes meant for slot a',
            value=core.parameters.split_percent / 100,
        ),
        counter('hedges', 'hedged requests', value=dispatcher.forwarder.hedges),
        counter(
            'hedges_won',
            'hedged requests whose second copy was answered first',
            value=dispatcher.hedges_won,
        ),
    ]


def canary_state(core: RouterCore) -> Metric:
    family = gauge('canary_state', 'ControlSlot and CanaryState name the numbers', ['state'])
    for state in type(core.canary.canary.state):
        family.add_metric([state.value], state is core.canary.canary.state)
    return family


def shadow_metrics(routing: RouterRuntime) -> list[Metric]:
    summary = routing.feed.summary()
    made = [
        gauge('shadow_hours', 'hours that the policy has been in shadow', value=summary.hours),
        counter('shadow_samples', 'comparisons', value=summary.samples),
        counter('shadow_trips', 'comparisons that would trip the cage', value=summary.trips),
    ]
    means = {
        'shadow_divergence': summary.divergence_mean,
        'shadow_divergence_spreads': summary.divergence_in_spreads_mean,
    }
    text = 'mean over all comparisons'
    return made + [gauge(name, text, value=v) for name, v in means.items() if not isnan(v)]
