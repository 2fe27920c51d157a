# SPDX-License-Identifier: Apache-2.0
"""
Prometheus metrics of the edge, read from its counters. The endpoint's thread.

`slot` is prod, a, b or other; reasons, rungs, verdicts and states come from fixed lists:
the number of series does not grow with episodes or servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import Metric

from lerobot_serve.cage.description import Verdict
from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.rungs import RungKind
from lerobot_serve.edge.observability.listener import ReplyStats
from lerobot_serve.edge.observability.reports import (
    control_steps_missed,
    count_drops,
    EdgeView,
    explain,
)
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.telemetry import http_endpoint
from lerobot_serve.telemetry.http_endpoint import HttpEndpoint, Reason
from lerobot_serve.telemetry.metric_families import counter, gauge, histogram

CONTROLLED_STATES = (ConnectionState.STREAMING, ConnectionState.DEGRADED)
Losses = Callable[[], dict[str, int]]


def serve(
    parameters: EdgeParameters, view: EdgeView, *, losses: Losses, why_not_alive: Reason
) -> HttpEndpoint | None:
    """
    Start the endpoint, None if disabled. `losses` returns the losses of the trace, by reason.
    Raises ParameterError.
    """
    return http_endpoint.start_endpoint(
        parameters,
        lambda: collect(view, losses()),
        keys=parameters.zenoh_keys,
        why_not_ready=lambda: why_not_ready(view),
        why_not_alive=why_not_alive,
    )


def why_not_ready(view: EdgeView) -> str:
    """
    Return why no policy controls the robot; empty if one does or, between two runs, could.

    Queued actions count: a late server does not affect the robot yet.
    """
    state, authority = view.requester.connection.state, view.operator.authority
    controller = view.controller
    stopped = state is ConnectionState.DEAD or controller.latched or controller.stopped
    by_hand = authority is ControlAuthority.OPERATOR or view.operator.takeover.is_taken_over
    if stopped or controller.start_blocked_by or by_hand:
        return explain(view)
    if authority is ControlAuthority.NONE or state in CONTROLLED_STATES:
        return ''
    return ': '.join(filter(None, (state.name, explain(view))))


def collect(view: EdgeView, losses: dict[str, int]) -> Iterable[Metric]:
    """Return all metrics."""
    yield from request_metrics(view)
    yield from reply_metrics(view.requester.pipeline.reply_stats)
    yield from command_metrics(view.controller)
    yield from control_step_metrics(view)
    yield dropped(dict(count_drops(view)) | losses)
    yield connection_state(view.requester.connection.state)


def request_metrics(view: EdgeView) -> list[Metric]:
    pipeline = view.requester.pipeline
    status = pipeline.status
    return [
        counter('edge_requests', 'requests sent', value=status.requests_sent),
        counter(
            'edge_chunks_accepted', 'chunks merged into the queue', value=status.chunks_accepted
        ),
        gauge(
            'edge_in_flight_requests',
            'requests in flight',
            value=pipeline.machine.in_flight is not None,
        ),
    ]


def reply_metrics(stats: ReplyStats) -> list[Metric]:
    latency = histogram('edge_round_trip', 'time from a request to its reply', ['slot'])
    network = histogram('edge_network', 'round trip less the time in the server', ['slot'])
    for family, durations in ((latency, stats.round_trips), (network, stats.network)):
        for slot, buckets in durations.items():
            family.add_metric([slot], buckets.cumulative(), buckets.sum_s)
    superseded = counter(
        'edge_requests_superseded',
        'requests superseded in the server by a newer one',
        value=stats.superseded,
    )
    return [latency, network, superseded]


def command_metrics(controller: Controller) -> list[Metric]:
    rungs = counter('edge_commands', 'commands sent, by rung', ['rung'])
    for rung, count in zip(RungKind, controller.commands, strict=True):
        rungs.add_metric([rung.name.lower()], count)
    trips = counter(
        'edge_cage_trips', 'commands that the safety cage changed or held', ['cage_result']
    )
    causes = counter('edge_cage_trip_causes', 'the same commands, by cause', ['cause'])
    for cause, count in sorted(controller.trip_causes.items()):
        causes.add_metric([cause], count)
    for verdict, count in zip(Verdict, controller.verdicts, strict=True):
        if verdict is not Verdict.PASS:
            trips.add_metric([verdict.name.lower()], count)
    return [
        counter('edge_actions_executed', 'commands sent', value=controller.actions_executed),
        rungs,
        trips,
        causes,
        counter(
            'edge_stalls', 'stalls: the queue ran empty during an episode', value=controller.stalls
        ),
        gauge('edge_cage_latched', '1 while the safety cage is latched', value=controller.latched),
        gauge(
            'edge_action_age_seconds',
            'age of the observation behind the last executed action',
            value=controller.age_ns / 1e9,
        ),
        gauge(
            'edge_oldest_action_age_seconds',
            'largest action age since the start of the node or of the last run',
            value=controller.oldest_age_ns / 1e9,
        ),
    ]


def control_step_metrics(view: EdgeView) -> list[Metric]:
    return [
        counter(
            'edge_control_steps',
            'control steps',
            value=view.rate.cycles - view.controller.steps_skipped,
        ),
        counter(
            'edge_control_steps_missed',
            'control steps missed or skipped',
            value=control_steps_missed(view),
        ),
        gauge(
            'edge_queue_remaining_seconds',
            'time that the queue lasts without stale actions',
            value=view.requester.playable_s,
        ),
    ]


def dropped(drops: dict[str, int]) -> Metric:
    family = counter('edge_dropped', 'drops and failures, by reason', ['reason'])
    for reason, count in sorted(drops.items()):
        family.add_metric([reason], count)
    return family


def connection_state(current: ConnectionState) -> Metric:
    family = gauge('edge_connection_state', '1 for the current state', ['state'])
    for state in ConnectionState:
        family.add_metric([state.name.lower()], state is current)
    return family
