"""The reports: what operators and recorders see is complete and fits its messages."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

from builtin_interfaces.msg import Time
import numpy as np
import pytest
from requester_rig import Bench, CHUNK

from lerobot_serve.edge.cage import Judgement, Verdict
from lerobot_serve.edge.controller import Executed
from lerobot_serve.edge.link import Progress
from lerobot_serve.edge.queue import ActionQueue, Planned, Source
from lerobot_serve.edge.reports import describe_state, edge_state, executed_action
from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction

SOURCE = Source(3, 7, 2, 'episode', 100, 'b', 'act@0')


def state(bench: Bench, actions: ActionQueue | None = None) -> EdgeState:
    controller = SimpleNamespace(
        drops={'stale_action': 2}, age_ns=250_000_000, actions_executed=5, stalls=1, cage_trips=4
    )
    return edge_state(
        bench.requester,
        controller,
        actions or bench.actions,
        SimpleNamespace(beats=9, missed=1),
        stamp=Time(),
        client_id='robot_1',
        server='/policy_server',
        task='fold the towel',
        fps=10.0,
    )


def test_every_drop_is_told_with_its_reason():
    bench = Bench()
    bench.requester.drops.update({'late_chunk': 1, 'stale_action': 1})
    bench.actions.append(CHUNK, SOURCE)
    bench.requester.reset()
    drops = {drop.reason: drop.count for drop in state(bench).drops}
    assert drops == {'cleared_action': 2, 'late_chunk': 1, 'stale_action': 3}
    assert bench.drops == {'late_chunk': 1, 'stale_action': 1}


def test_the_state_tells_what_is_left_and_what_was_counted():
    bench = Bench()
    bench.actions.append(CHUNK, SOURCE)
    told = state(bench)
    assert told.queue_remaining_s == pytest.approx(0.2)
    assert told.action_age_s == pytest.approx(0.25)
    assert (told.ticks, told.ticks_missed, told.actions_executed) == (9, 1, 5)
    assert (told.stalls, told.cage_trips) == (1, 4)
    assert (told.state, told.server) == (EdgeState.CONNECTING, '')


@pytest.mark.parametrize(
    ('progress', 'playing', 'expected'),
    [
        (Progress(refused='no'), False, (EdgeState.CONNECTING, 'no')),
        (Progress(refused='no', ever_connected=True), True, (EdgeState.RECONNECTING, 'no')),
        (Progress(connected=True), False, (EdgeState.STALLED, 'waiting for a chunk')),
        (Progress(connected=True, failed='bad'), False, (EdgeState.STALLED, 'bad')),
        (
            Progress(connected=True, failed='bad', waiting_for='front'),
            False,
            (EdgeState.STALLED, 'front'),
        ),
        (Progress(connected=True), True, (EdgeState.STREAMING, '')),
    ],
)
def test_the_state_says_why(progress, playing, expected):
    assert describe_state(progress, playing=playing) == expected


def test_late_answers_are_a_degraded_state():
    told, reason = describe_state(Progress(connected=True, late=True), playing=True)
    assert told == EdgeState.DEGRADED
    assert 'not answered in time' in reason


@pytest.mark.parametrize('text', ['x' * 5000, 'ü' * 5000, 'half a pair \udcff'])
def test_a_text_of_a_server_fits_the_message(text):
    bench = Bench()
    bench.requester.progress.refused = text
    told = state(bench).reason
    assert 0 < len(told.encode()) <= 1024


def test_an_executed_action_tells_where_it_came_from_and_what_became_of_it():
    planned = Planned(np.array([1.0, 2.0], np.float32), SOURCE, 4)
    judgement = Judgement(Verdict.CLAMPED, np.array([0.5, 2.0]), 'pan.pos: limit')
    told = executed_action(
        Executed(planned, judgement, 500_000_000), stamp=Time(), tick=8, client_id='robot_1'
    )
    assert (told.seq, told.session_epoch, told.episode, told.chunk_row) == (3, 7, 2, 4)
    assert (told.episode_id, told.slot, told.policy) == ('episode', 'b', 'act@0')
    assert (list(told.raw), list(told.commanded)) == ([1.0, 2.0], [0.5, 2.0])
    assert (told.verdict, told.reason) == (ExecutedAction.CLAMPED, 'pan.pos: limit')
    assert (told.age_s, told.tick) == (0.5, 8)


def test_a_stopped_action_was_not_commanded_and_its_long_reason_fits():
    planned = Planned(np.zeros(2, np.float32), SOURCE, 0)
    judgement = Judgement(Verdict.STOPPED, None, 'ü' * 300)
    told = executed_action(Executed(planned, judgement, 0), stamp=Time(), tick=1, client_id='r')
    assert list(told.commanded) == []
    assert len(told.reason.encode()) <= 256


def test_the_verdicts_are_those_of_the_message():
    for verdict in Verdict:
        assert getattr(ExecutedAction, verdict.name) == verdict
    assert {field.name for field in fields(Judgement)} == {'verdict', 'command', 'reason'}
