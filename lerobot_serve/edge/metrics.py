"""
The edge's metrics for Prometheus, read from what it counts anyway. The endpoint's thread.

`policy_slot` is prod, a, b or other; reasons, rungs, verdicts and states are of fixed lists: the
number of series does not grow with episodes or servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import Metric

from lerobot_serve.cage.judgement import Verdict
from lerobot_serve.edge.authority import Commander
from lerobot_serve.edge.controller import Controller
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.reports import count_drops, explain, ticks_missed, View
from lerobot_serve.edge.rungs import RungKind
from lerobot_serve.edge.states import State
from lerobot_serve.edge.tally import Tally
from lerobot_serve.telemetry import endpoint
from lerobot_serve.telemetry.endpoint import Endpoint
from lerobot_serve.telemetry.families import counter, gauge, histogram

DRIVEN = (State.STREAMING, State.DEGRADED)
Losses = Callable[[], dict[str, int]]


def serve(parameters: EdgeParameters, view: View, *, losses: Losses) -> Endpoint | None:
    """
    Return the endpoint, None when none is wanted. `losses` is what the trace itself lost, by
    reason. Raises ParameterError.
    """
    return endpoint.serve(parameters, lambda: collect(view, losses()), lambda: why_not_ready(view))


def why_not_ready(view: View) -> str:
    """
    Return why no policy drives the robot, empty when one does or, between two runs, would.

    What is buffered counts: a server that is late changes nothing for the robot yet.
    """
    state, say = view.requester.connection.state, view.operation.say
    controller = view.controller
    stopped = state is State.DEAD or controller.latched or controller.stopped
    if stopped or controller.waits_for or say is Commander.OPERATOR:
        return explain(view)
    if say is Commander.NOBODY or state in DRIVEN:
        return ''
    return ': '.join(filter(None, (state.name, explain(view))))


def collect(view: View, losses: dict[str, int]) -> Iterable[Metric]:
    """Return all metrics."""
    yield from of_requests(view)
    yield from of_answers(view.requester.exchange.tally)
    yield from of_commands(view.controller)
    yield from of_ticks(view)
    yield dropped(dict(count_drops(view)) | losses)
    yield connection_state(view.requester.connection.state)


def of_requests(view: View) -> list[Metric]:
    exchange = view.requester.exchange
    progress = exchange.progress
    return [
        counter('requests', 'requests sent', value=progress.requests_sent),
        counter('chunks_accepted', 'answers that were played', value=progress.chunks_accepted),
        gauge('in_flight_requests', 'requests under way', value=exchange.pending is not None),
    ]


def of_answers(tally: Tally) -> list[Metric]:
    latency = histogram('act_latency', 'from a request to its answer', ['policy_slot'])
    network = histogram(
        'network_time', 'of a round trip, what was not spent in the server', ['policy_slot']
    )
    for family, durations in ((latency, tally.round_trips), (network, tally.network)):
        for slot, buckets in durations.items():
            family.add_metric([slot], buckets.cumulative(), buckets.sum_s)
    superseded = counter(
        'superseded', 'requests that a newer one replaced in the server', value=tally.superseded
    )
    return [latency, network, superseded]


def of_commands(controller: Controller) -> list[Metric]:
    rungs = counter('commands', 'commands sent, by what made them', ['rung'])
    for rung, count in zip(RungKind, controller.commands, strict=True):
        rungs.add_metric([rung.name.lower()], count)
    trips = counter('cage_trips', 'commands that the safety cage changed or held', ['verdict'])
    for verdict, count in zip(Verdict, controller.verdicts, strict=True):
        if verdict is not Verdict.PASS:
            trips.add_metric([verdict.name.lower()], count)
    return [
        counter('actions_executed', 'commands sent', value=controller.actions_executed),
        rungs,
        trips,
        counter('stalls', 'times that nothing was left to play', value=controller.stalls),
        gauge('cage_latched', '1 when only a person lets it move', value=controller.latched),
        gauge(
            'action_age_seconds',
            'age of the observation behind the last action played',
            value=controller.age_ns / 1e9,
        ),
        gauge(
            'oldest_action_age_seconds',
            'the same, the oldest since start or the begin of the last run',
            value=controller.oldest_age_ns / 1e9,
        ),
    ]


def of_ticks(view: View) -> list[Metric]:
    return [
        counter('ticks', 'control steps', value=view.beat.beats - view.controller.ticks_skipped),
        counter('ticks_missed', 'control steps that came too late', value=ticks_missed(view)),
        gauge(
            'queue_remaining_seconds',
            'how long the robot can go on with what it has',
            value=view.requester.left_s,
        ),
    ]


def dropped(drops: dict[str, int]) -> Metric:
    family = counter('drops', 'what was dropped or failed, by reason', ['reason'])
    for reason, count in sorted(drops.items()):
        family.add_metric([reason], count)
    return family


def connection_state(present: State) -> Metric:
    family = gauge('connection_state', '1 for the state that it is in', ['state'])
    for state in State:
        family.add_metric([state.name.lower()], state is present)
    return family
