# SPDX-License-Identifier: Apache-2.0
"""The reports: what operators and recorders see is complete and fits its messages."""

from __future__ import annotations

from types import SimpleNamespace

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
import numpy as np
import pytest
from support.edge import operation_rig
from support.edge.controller_rig import Bench as Tick
from support.edge.controller_rig import GIVING_UP, STEP_NS, WAYS
from support.edge.requester_rig import CHUNK

from lerobot_serve.cage.description import CageResult, Verdict
from lerobot_serve.edge.action_queue import ChunkSource, QueuedAction
from lerobot_serve.edge.control.ladder import LadderDecision
from lerobot_serve.edge.control.rungs import RungKind
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.observability.reports import (
    diagnostics,
    edge_state,
    executed_action,
)
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes
from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction

SOURCE = ChunkSource(3, 7, 2, 'episode', 100, 'b', 'act@0')
PLAY = LadderDecision(RungKind.POLICY, np.array([1.0, 2.0]), 'policy')


class Robot(operation_rig.Robot):
    """All that there is to tell of."""

    def __init__(self, *, run_on_start: bool = True, **tick: object) -> None:
        super().__init__(run_on_start=run_on_start, **tick)
        self.view = self.view_with(SimpleNamespace(cycles=9, missed=1))

    @property
    def status(self):
        return self.requests.pipeline.status

    def be(self, state: ConnectionState, reason: str = 'for a reason') -> None:
        for event in WAYS[state]:
            self.requests.connection.handle(event, reason)

    def state(self) -> EdgeState:
        return edge_state(self.view, stamp=Time(sec=5), client_id='robot_1')


@pytest.fixture
def robot() -> Robot:
    return Robot()


def test_every_drop_is_told_with_its_reason_and_only_where_there_were_some(robot):
    assert list(robot.state().dropped) == []
    bench = robot.requests
    bench.pipeline.status.dropped.update({'late_chunk': 1, 'stale_action': 1, 'state_lost': 0})
    robot.tick.controller.dropped['stale_action'] = 2
    old = bench.actions.mark()
    bench.actions.append(CHUNK, SOURCE, mark=old)
    bench.actions.clear()
    bench.actions.append(CHUNK, SOURCE, mark=old)
    bench.history.gaps = 4
    for _ in range(2):
        drops = [(drop.reason, drop.count) for drop in robot.state().dropped]
        assert drops == [
            ('cleared_action', 2),
            ('history_gap', 4),
            ('late_chunk', 1),
            ('rejected_chunk', 1),
            ('stale_action', 3),
        ]


def test_the_state_tells_what_is_left_and_what_was_counted(robot):
    bench, tick = robot.requests, robot.tick
    bench.actions.append(CHUNK, SOURCE, mark=bench.actions.mark())
    tick.plan(0.5, float('nan'), age_ns=3 * STEP_NS)
    tick.commands(4)
    told = robot.state()
    assert told.queue_remaining_s == pytest.approx(len(CHUNK) * bench.step_s)
    assert told.action_age_s == pytest.approx(0.08)
    assert (told.control_steps, told.control_steps_missed, told.actions_executed) == (9, 1, 4)
    assert (told.stalls, told.cage_trips) == (1, 1)
    assert (told.client_id, told.stamp.sec, told.server) == ('robot_1', 5, '')
    assert told.rung == EdgeState.RUNG_RAMP
    assert not told.paused


def test_the_state_tells_of_server_policy_and_episode(robot):
    bench = robot.requests
    bench.requester._connect()
    raw = reply_bytes(bench.send_request(), CHUNK, slot='b', policy='act@0', inference_ms=5.0)
    bench.pipeline.on_reply(raw, 20_000_000, bench.settings)
    told = robot.state()
    assert (told.server, told.slot, told.policy) == ('/policy_server', 'b', 'act@0')
    assert (told.task, told.episode_id) == ('fold the towel', 'robot_1-ffffffff-0001')
    assert (told.round_trip_ms, told.network_ms) == (20.0, 15.0)
    assert (told.requests_sent, told.chunks_accepted) == (1, 1)


@pytest.mark.parametrize('state', ConnectionState)
def test_the_state_is_that_of_the_connection(robot, state):
    robot.be(state)
    assert robot.state().state == getattr(EdgeState, state.name) == state


@pytest.mark.parametrize('kind', RungKind)
def test_the_rungs_are_those_of_the_message(robot, kind):
    robot.tick.controller.rung = kind
    assert robot.state().rung == getattr(EdgeState, f'RUNG_{kind.name}')


WORDS = [
    (ConnectionState.CONNECTING, {}, 'not connected yet'),
    (ConnectionState.STREAMING, {}, ''),
    (
        ConnectionState.STREAMING,
        {'waiting_for': 'front is old', 'last_failure': 'bad'},
        'front is old',
    ),
    (ConnectionState.DEGRADED, {'last_failure': 'bad'}, 'for a reason; bad'),
    (ConnectionState.STALLED, {'waiting_for': 'front is old'}, 'for a reason; front is old'),
    (ConnectionState.RECONNECTING, {}, 'for a reason'),
    (
        ConnectionState.DEAD,
        {'last_failure': 'bad'},
        'for a reason. Fix the cause, then call ~/reset',
    ),
]


@pytest.mark.parametrize(('state', 'status', 'reason'), WORDS)
def test_a_state_says_why(robot, state, status, reason):
    robot.be(state)
    for name, text in status.items():
        setattr(robot.status, name, text)
    assert robot.state().reason == reason


def test_who_pauses_and_who_waits_is_told():
    robot = Robot(run_on_start=False)
    assert robot.state().reason == 'no episode runs'
    robot.be(ConnectionState.STALLED)
    robot.operation.pause()
    told = robot.state()
    assert (told.reason, told.paused) == ('paused', True)


def test_a_latched_cage_is_told_before_all_but_the_end():
    robot = Robot(latch_after_trips=1)
    robot.tick.plan(float('nan'))
    robot.tick.step()
    robot.operation.pause()
    why = 'latched after 1 consecutive trips, the last: j0.pos: not finite; call ~/reset_cage'
    reason = f'Safety cage latched ({why}). Fix the cause, then call ~/reset_cage'
    assert robot.state().reason == reason
    robot.be(ConnectionState.DEAD)
    assert robot.state().reason.endswith('Fix the cause, then call ~/reset')


@pytest.mark.parametrize('text', ['x' * 5000, 'ü' * 5000, 'half a pair \udcff'])
def test_a_text_of_a_server_fits_the_message(robot, text):
    robot.be(ConnectionState.DEAD, text)
    robot.status.task = text
    told = robot.state()
    assert 0 < len(told.reason.encode()) <= 1024
    assert 0 < len(told.task.encode()) <= 4096


# commands


def told_of(executed: ExecutedStep) -> ExecutedAction:
    return executed_action(executed, stamp=Time(sec=5), control_step=8, client_id='robot_1')


def test_an_executed_action_tells_where_it_came_from_and_what_became_of_it():
    planned = QueuedAction(np.array([1.0, 2.0], np.float32), SOURCE, 4)
    judgement = CageResult(Verdict.CLAMPED, np.array([0.5, 2.0]), 'pan.pos: limit', 'limit')
    told = told_of(ExecutedStep(planned, PLAY, judgement, 500_000_000))
    assert (told.seq, told.session_epoch, told.episode, told.chunk_row) == (3, 7, 2, 4)
    assert (told.episode_id, told.slot, told.policy) == ('episode', 'b', 'act@0')
    assert (list(told.raw), list(told.commanded)) == ([1.0, 2.0], [0.5, 2.0])
    assert (told.cage_result, told.reason) == (ExecutedAction.CLAMPED, 'pan.pos: limit')
    assert (told.age_s, told.control_step, told.client_id) == (0.5, 8, 'robot_1')
    assert told.rung == EdgeState.RUNG_POLICY


def test_what_passes_needs_no_reason():
    planned = QueuedAction(np.array([1.0, 2.0], np.float32), SOURCE, 0)
    told = told_of(ExecutedStep(planned, PLAY, CageResult(Verdict.PASS, PLAY.wanted), 0))
    assert (told.cage_result, told.reason) == (ExecutedAction.PASS, '')


@pytest.mark.parametrize(
    ('by_the_cage', 'reason'), [('', 'hold: paused'), ('j0: step', 'j0: step')]
)
def test_a_rung_has_no_source_and_says_why(by_the_cage, reason):
    decision = LadderDecision(RungKind.HOLD, np.array([1.0]), 'hold: paused')
    told = told_of(
        ExecutedStep(None, decision, CageResult(Verdict.PASS, decision.wanted, by_the_cage), 0)
    )
    assert (told.seq, told.session_epoch, told.episode, told.chunk_row) == (0, 0, 0, 0)
    assert (told.episode_id, told.slot, told.policy, told.age_s) == ('', '', '', 0.0)
    assert (told.rung, told.reason) == (EdgeState.RUNG_HOLD, reason)
    assert (list(told.raw), list(told.commanded)) == ([1.0], [1.0])


def test_a_stopped_action_was_not_commanded_and_its_long_reason_fits():
    planned = QueuedAction(np.zeros(2, np.float32), SOURCE, 0)
    judgement = CageResult(Verdict.STOPPED, None, 'ü' * 300)
    told = told_of(ExecutedStep(planned, PLAY, judgement, 0))
    assert list(told.commanded) == []
    assert 250 < len(told.reason.encode()) <= 256


def test_an_action_that_is_not_finite_is_told_as_it_was():
    wanted = np.array([np.nan, -np.inf])
    judgement = CageResult(Verdict.HELD, np.zeros(2), 'not finite')
    told = told_of(
        ExecutedStep(
            QueuedAction(wanted, SOURCE, 0),
            LadderDecision(RungKind.POLICY, wanted, ''),
            judgement,
            0,
        )
    )
    assert np.isnan(told.raw[0])
    assert told.raw[1] == -np.inf


def test_each_step_of_a_robot_makes_a_record():
    tick = Tick(ladder=GIVING_UP)
    tick.plan(1.0, float('nan'), 1e30)
    records = [told_of(executed) for executed in iter(tick.step, None)]
    assert [record.seq for record in records] == [1, 1, 1, *[0] * 6]
    assert [record.cage_result for record in records[:3]] == [
        ExecutedAction.PASS,
        ExecutedAction.HELD,
        ExecutedAction.CLAMPED,
    ]


def test_the_verdicts_are_those_of_the_message():
    for verdict in Verdict:
        assert getattr(ExecutedAction, verdict.name) == verdict


# diagnostics


LEVELS = {
    ConnectionState.STREAMING: DiagnosticStatus.OK,
    ConnectionState.DEAD: DiagnosticStatus.ERROR,
}


@pytest.mark.parametrize('state', ConnectionState)
def test_the_diagnostics_say_how_bad_it_is(robot, state):
    robot.be(state)
    told = diagnostics(robot.state(), name='/robot_1/edge_controller')
    (status,) = told.status
    assert status.level == LEVELS.get(state, DiagnosticStatus.WARN)
    assert status.message.startswith(state.name)
    assert (status.name, status.hardware_id) == ('/robot_1/edge_controller: robot_1', 'robot_1')
    assert told.header.stamp.sec == 5


def test_the_diagnostics_hold_what_an_operator_looks_for(robot):
    robot.be(ConnectionState.STREAMING)
    robot.status.server, robot.status.slot = '/policy_server', 'b'
    robot.status.waiting_for = 'front is 2 s old'
    (status,) = diagnostics(robot.state(), name='edge').status
    values = {value.key: value.value for value in status.values}
    assert status.message == 'STREAMING: front is 2 s old'
    assert (values['server'], values['slot'], values['stalls']) == ('/policy_server', 'b', '0')
    assert (values['left to play [s]'], values['control steps missed']) == ('0.00', '1')
