# SPDX-License-Identifier: Apache-2.0
"""The edge's metrics: each of them moves, their number does not grow, and readiness says why."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.edge import operation_rig
from support.edge.controller_rig import arm, STEP_NS, WAYS
from support.edge.requester_rig import CHUNK, MS, STEP_S
from support.golden import listed
from support.paths import REPOSITORY

from lerobot_serve.edge.action_queue import ChunkSource
from lerobot_serve.edge.observability.metrics import collect, serve, why_not_ready
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes

DOCUMENT = REPOSITORY / 'docs' / 'edge_controller.md'
# as the documentation writes a name
STARTS, ENDS = ('`lerobot_serve_edge_', '`..._'), ('`', '_total`')

SOURCE = ChunkSource(1, 0, 0, 'episode', 0, 'b', 'act@0')
NAN = float('nan')


class Robot(operation_rig.Robot):
    """All that metrics are read from."""

    def __init__(self, *, run_on_start: bool = True) -> None:
        super().__init__(run_on_start=run_on_start, robot=arm(0.5))
        self.beat = SimpleNamespace(cycles=0, missed=0)
        self.view = self.view_with(self.beat)
        self.losses: dict[str, int] = {}

    def families(self) -> dict[str, dict[tuple, float]]:
        """Return the value of each series, by family and then by name and labels."""
        return {
            family.name: {
                (sample.name, *sample.labels.values()): sample.value for sample in family.samples
            }
            for family in collect(self.view, self.losses)
        }

    def series(self) -> dict[tuple, float]:
        found = {}
        for samples in self.families().values():
            found |= samples
        return {
            (name.removeprefix('lerobot_serve_edge_'), *rest): v
            for (name, *rest), v in found.items()
        }

    def be(self, state: ConnectionState) -> None:
        for event in WAYS[state]:
            self.requests.connection.handle(event, 'for a reason')

    def answer(self, round_trip_ms: int = 30, **changes: object) -> None:
        bench = self.requests
        request = bench.send_request()
        bench.now_ns += round_trip_ms * MS
        raw = reply_bytes(request, CHUNK, **changes)
        bench.pipeline.on_reply(raw, bench.now_ns, bench.settings)


@pytest.fixture
def robot() -> Robot:
    return Robot()


def ask_and_hear(robot: Robot) -> None:
    robot.requests.requester._connect()
    robot.answer(slot='b', inference_ms=10.0, superseded=2)
    robot.answer(slot='nobody knows', superseded=3)
    series = robot.series()
    assert series['requests_total',] == series['chunks_accepted_total',] == 2
    assert series['round_trip_seconds_bucket', 'b', '0.05'] == 1
    assert series['round_trip_seconds_bucket', 'b', '0.025'] == 0
    assert series['network_seconds_bucket', 'b', '0.025'] == 1
    assert series['network_seconds_sum', 'b'] == pytest.approx(0.02)
    assert series['round_trip_seconds_count', 'other'] == 1
    assert series['requests_superseded_total',] == 3
    assert series['queue_remaining_seconds',] == pytest.approx(2 * len(CHUNK) * STEP_S)


def have_one_in_flight(robot: Robot) -> None:
    assert robot.series()['in_flight_requests',] == 0
    robot.requests.send_request()
    assert robot.series()['in_flight_requests',] == 1


def play_and_fall(robot: Robot) -> None:
    tick = robot.tick
    tick.plan(0.25, 5.0, NAN, age_ns=2 * STEP_NS)
    tick.commands(4)
    tick.plan(0.5)
    tick.commands(1)
    series = robot.series()
    assert series['actions_executed_total',] == 5
    assert series['commands_total', 'policy'] == 4
    assert series['commands_total', 'ramp'] == 1
    assert series['cage_trips_total', 'clamped'] == 1
    assert series['cage_trips_total', 'held'] == 1
    assert series['stalls_total',] == 1
    assert series['action_age_seconds',] == 0
    assert series['oldest_action_age_seconds',] == pytest.approx(0.08)
    tick.plan(0.5, age_ns=STEP_NS)
    tick.commands(1)
    assert robot.series()['action_age_seconds',] == pytest.approx(0.02)


def tick_late(robot: Robot) -> None:
    robot.beat.cycles, robot.beat.missed = 7, 3
    series = robot.series()
    assert (series['control_steps_total',], series['control_steps_missed_total',]) == (7, 3)


def drop(robot: Robot) -> None:
    robot.requests.inbox.put_reply(b'malformed')
    robot.requests.requester._receive(1.0)
    robot.tick.controller.dropped['stale_action'] += 4
    robot.losses = {'trace_overflow': 5}
    series = robot.series()
    assert series['dropped_total', 'encapsulation'] == 1
    assert series['dropped_total', 'stale_action'] == 4
    assert series['dropped_total', 'trace_overflow'] == 5


def change_state(robot: Robot) -> None:
    robot.be(ConnectionState.STALLED)
    series = robot.series()
    states = {state: series['connection_state', state.name.lower()] for state in ConnectionState}
    assert [state for state, value in states.items() if value] == [ConnectionState.STALLED]


def latch(robot: Robot) -> None:
    robot.tick.cage._latched_by = 'three trips'
    assert robot.series()['cage_latched',] == 1


MOVES = (
    ask_and_hear, have_one_in_flight, play_and_fall, tick_late, drop, change_state, latch,
)  # fmt: skip


def test_every_metric_moves():
    moved = set()
    for move in MOVES:
        robot = Robot()
        before = robot.families()
        move(robot)
        now = robot.families()
        assert now.keys() == before.keys()
        moved |= {name for name, samples in now.items() if samples != before[name]}
    assert moved == now.keys()


@pytest.mark.golden
def test_the_metrics_are_what_was_agreed(robot, golden):
    golden.holds('metrics/edge.txt', listed(collect(robot.view, robot.losses)))


def test_the_documentation_has_every_metric(robot):
    document = DOCUMENT.read_text()
    for name in robot.families():
        short = name.removeprefix('lerobot_serve_edge_')
        assert any(f'{start}{short}{end}' in document for start in STARTS for end in ENDS), name


def test_every_series_is_there_from_the_start_but_reasons(robot):
    before = robot.series()
    for move in MOVES:
        move(Robot())
    ask_and_hear(robot)
    drop(robot)
    new = robot.series().keys() - before.keys()
    assert {name for name, *_ in new} == {'dropped_total'}


def test_servers_cannot_add_series(robot):
    robot.requests.requester._connect()
    before = len(robot.series())
    for number in range(50):
        robot.answer(slot=f'slot {number}')
    assert len(robot.series()) == before


def test_superseded_goes_on_where_a_server_counts_anew(robot):
    requester = robot.requests.requester
    for counts in ((2, 5), (1, 1, 4)):
        requester._connect()
        for count in counts:
            robot.answer(superseded=count)
    assert robot.series()['requests_superseded_total',] == 9


# ready


@pytest.mark.parametrize('state', ConnectionState)
def test_it_is_ready_while_what_a_policy_said_is_played(robot, state):
    robot.be(state)
    why_not = why_not_ready(robot.view)
    if state in (ConnectionState.STREAMING, ConnectionState.DEGRADED):
        assert why_not == ''
    elif state is ConnectionState.DEAD:
        assert why_not == 'for a reason. Fix the cause, then call ~/reset'
    else:
        assert why_not.startswith(f'{state.name}: ')


def test_a_robot_that_waits_for_its_next_run_is_ready():
    robot = Robot(run_on_start=False)
    assert why_not_ready(robot.view) == ''
    robot.be(ConnectionState.STALLED)
    assert why_not_ready(robot.view) == ''
    robot.operation.begin_episode(EpisodeRequest())
    assert why_not_ready(robot.view).startswith('STALLED')


def test_who_pauses_or_has_latched_is_not_ready(robot):
    robot.be(ConnectionState.STREAMING)
    robot.operation.pause()
    assert why_not_ready(robot.view) == 'paused'
    robot.operation.resume()
    latch(robot)
    assert 'call ~/reset_cage' in why_not_ready(robot.view)


def test_there_is_no_endpoint_without_a_port(robot):
    assert serve(EdgeParameters(), robot.view, losses=dict, why_not_alive=str) is None
