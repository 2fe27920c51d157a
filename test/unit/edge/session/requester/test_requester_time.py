# SPDX-License-Identifier: Apache-2.0
"""The requester and the clock: when it asks, when it is late, when it rests, and that it waits."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.requester_rig import ABC, Simulation

from lerobot_serve.edge.inputs.latest import InputsNotReady
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.transport import EpisodeRequest
from lerobot_serve.wire.schema import Status
from lerobot_serve.wire.session import ServerUnreachable

ONE = ('/a',)
GONE = ServerUnreachable('no answer')
# 2 s to play, of which half a second is left when the next one is asked for
LONG = np.zeros((20, 3), np.float32)


def streaming(**pace: object) -> Simulation:
    """Return a robot that plays what it is given, ten rows a second."""
    bench = Simulation(servers=ONE, append=False, **pace)
    bench.answers['/a'] = {'robot': LONG}
    bench.play(100.0)
    return bench


def asked_s(bench: Simulation) -> list[float]:
    return [round(at_s, 2) for at_s, _, _ in bench.requests]


def test_it_asks_when_the_buffer_is_what_is_left():
    bench = streaming()
    bench.run(5.0)
    # the first chunk comes at 0.05 s; its 15th row is taken at 1.5 s
    first, second, *_ = asked_s(bench)
    assert (first, second) == (0.0, pytest.approx(1.5, abs=0.11))
    assert len(asked_s(bench)) == 4
    assert bench.states == ['STREAMING']


def test_a_chunk_that_comes_too_late_degrades_and_the_next_one_heals():
    bench = streaming(degraded_after_s=1.0, request_timeout_s=5.0)
    bench.at(1.0, lambda: setattr(bench, 'round_trip_s', 3.0))
    bench.at(4.0, lambda: setattr(bench, 'round_trip_s', 0.05))
    bench.run(6.0)
    assert bench.states == ['STREAMING', 'DEGRADED', 'STREAMING']
    late, healed = bench.connection.changes[1:]
    # wanted at 1.5 s or a little later; looked at every tenth of a second
    assert 2.5 <= late.at_ns / 1e9 <= 2.71
    assert late.reason == 'no chunk for 1 s'
    assert healed.at_ns / 1e9 == pytest.approx(4.5, abs=0.11)


def test_answers_without_actions_are_no_chunks():
    bench = streaming(degraded_after_s=0.2)
    bench.at(1.0, lambda: bench.answers.update({'/a': {'status': Status.POLICY_ERROR}}))
    bench.run(2.0)
    assert bench.states == ['STREAMING', 'DEGRADED']


def test_without_a_session_for_so_long_it_is_given_up():
    bench = streaming(max_offline_s=10.0, degraded_after_s=60.0)
    bench.at(1.0, lambda: bench.link.refusals.update({'/a': GONE}))
    bench.at(1.0, lambda: bench.answers.update({'/a': None}))
    bench.run(20.0)
    assert bench.states == ['STREAMING', 'RECONNECTING', 'DEAD']
    lost, dead = bench.connection.changes[1:]
    # waits up to 2 s for a server that is gone
    assert 10.0 <= (dead.at_ns - lost.at_ns) / 1e9 <= 12.1
    assert dead.reason.startswith('no session for 10 s; /a: ')


def test_a_robot_that_never_had_a_session_waits_for_ever():
    bench = Simulation(servers=ONE, max_offline_s=10.0)
    bench.link.refusals['/a'] = GONE
    bench.run(1000.0)
    assert bench.connection.state == ConnectionState.CONNECTING


def test_who_rests_asks_for_nothing_and_then_goes_on():
    bench = streaming(degraded_after_s=0.5)
    bench.at(1.0, lambda: bench.requester.rest(resting=True))
    bench.at(8.0, lambda: bench.requester.rest(resting=False))
    bench.run(9.0)
    assert asked_s(bench) == [0.0, 8.0]
    # nothing was wanted meanwhile
    assert bench.states == ['STREAMING']
    assert bench.link.asked == [('/a', 0)]


def test_who_rests_before_there_is_a_session_opens_none():
    bench = Simulation(servers=ONE)
    bench.requester.rest(resting=True)
    bench.at(3.0, lambda: bench.requester.rest(resting=False))
    bench.run(3.2)
    assert asked_s(bench)[0] == 3.0


def test_who_rests_has_a_lost_session_opened_again_and_is_not_given_up_for_resting():
    bench = streaming(max_offline_s=10.0)
    bench.at(1.49, lambda: bench.answers.update({'/a': {'status': Status.NO_SESSION}}))
    # on its way at that moment
    bench.at(1.58, lambda: bench.requester.rest(resting=True))
    bench.run(60.0)
    assert ConnectionState.DEAD.name not in bench.states
    assert len(bench.link.asked) == 2
    assert asked_s(bench) == [0.0, 1.55]


def test_an_answer_on_its_way_still_counts_while_it_rests():
    bench = streaming()
    bench.at(0.02, lambda: bench.requester.rest(resting=True))
    bench.run(0.5)
    assert bench.exchange.progress.chunks_accepted == 1


def test_a_new_pace_holds_from_the_next_episode_on():
    bench = streaming()
    bench.at(0.3, lambda: change(bench))
    bench.at(4.0, lambda: bench.requester.begin(EpisodeRequest()))
    bench.run(6.0)
    # asked for with 0.5 s left, and from 4 s on with 1.5 s left
    times = asked_s(bench)
    assert times[:2] == [0.0, pytest.approx(1.5, abs=0.11)]
    after = [at_s for at_s in times if at_s >= 4.0]
    assert after[:2] == [4.0, pytest.approx(4.6, abs=0.11)]


def change(bench: Simulation) -> None:
    bench.requester.next_settings = replace(bench.pace, request_threshold_s=1.5)


behaviours = st.sampled_from(
    [
        {},
        {'robot': LONG},
        None,
        {'status': Status.POLICY_ERROR},
        {'status': Status.NO_SESSION},
        {'robot': LONG * np.nan},
        {'client_id': 'robot_2'},
    ]
)
events = st.one_of(
    st.tuples(st.just('answers'), st.sampled_from(ABC), behaviours),
    st.tuples(st.just('gone'), st.sampled_from(ABC), st.booleans()),
    st.tuples(st.just('round trip'), st.sampled_from([0.05, 0.3, 1.5])),
    st.tuples(st.just('rest'), st.booleans()),
    st.just(('begin',)),
    st.just(('clear',)),
)


def happen(bench: Simulation, event: str, *details: object) -> None:
    if event == 'answers':
        bench.answers[details[0]] = details[1]
    elif event == 'gone' and details[1]:
        bench.link.refusals[details[0]] = GONE
    elif event == 'gone':
        bench.link.refusals.pop(details[0], None)
    elif event == 'round trip':
        bench.round_trip_s = details[0]
    elif event == 'rest':
        bench.requester.rest(resting=details[0])
    elif event == 'begin':
        bench.requester.begin(EpisodeRequest())
    else:
        bench.actions.clear()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 10), events), max_size=20), st.integers(1, 3))
def test_whatever_happens_one_request_is_in_flight_and_it_never_spins(
    script, max_consecutive_timeouts
):
    bench = Simulation(append=False, max_consecutive_timeouts=max_consecutive_timeouts)
    ask = bench.exchange.ask

    def alone(pace: object) -> object:
        # one whose time is over is given up as the next is sent
        assert bench.exchange.pending is None or bench.exchange._ledger.overdue
        return ask(pace)

    bench.exchange.ask = alone
    bench.play(10.0)
    for at_s, event in script:
        bench.at(at_s, lambda event=event: happen(bench, *event))
    bench.run(10.0)
    # at most one for each round trip, and a few that events brought about
    assert len(bench.requests) <= 210 + 4 * len(script)
    assert len(bench.link.asked) <= 210 + 4 * len(script)
    assert len(bench.waits) <= 1000 + 4 * len(script)
    if bench.exchange.progress.server:
        assert bench.link.left[-1] == bench.exchange.progress.server


@pytest.mark.parametrize(('step_s', 'buffer_s', 'rows'), [(0.1, 0.3, 3), (0.1, 0.6, 6)])
def test_what_rounding_leaves_to_wait_for_does_not_make_it_spin(step_s, buffer_s, rows):
    assert rows * step_s > buffer_s
    bench = Simulation(servers=ONE, step_s=step_s, request_threshold_s=buffer_s, append=False)
    bench.answers['/a'] = {'robot': LONG[:rows]}
    bench.run(1.0)
    assert len(bench.requests) == 1
    # not one row is taken in this second
    assert len(bench.waits) <= 1001


def test_what_grows_too_old_before_it_is_played_is_not_buffered():
    bench = streaming(max_action_age_s=1.0)
    bench.answers['/a'] = {'robot': np.zeros((50, 3), np.float32)}
    bench.run(1.0)
    # of 5 s in the chunk, 1 s may be played; half of it is the buffer
    assert asked_s(bench)[:2] == [0.0, pytest.approx(0.55, abs=0.11)]


def test_what_is_wanted_while_it_rests_is_not_late():
    bench = streaming(degraded_after_s=1.0)
    # wanted from 1.5 s on, but the camera is gone
    bench.at(1.0, lambda: bench.link.observe_errors.extend([InputsNotReady('front is old')] * 100))
    bench.at(2.0, lambda: bench.requester.rest(resting=True))
    bench.at(6.0, bench.link.observe_errors.clear)
    bench.at(6.0, lambda: bench.requester.rest(resting=False))
    bench.run(7.0)
    assert bench.states == ['STREAMING']


def test_a_camera_that_is_gone_degrades():
    bench = streaming(degraded_after_s=1.0)
    bench.at(
        1.0, lambda: bench.link.observe_errors.extend([InputsNotReady('front is old')] * 1000)
    )
    bench.run(4.0)
    assert bench.states == ['STREAMING', 'DEGRADED']


def test_who_rested_for_long_goes_on_in_its_session():
    """Presence tells when the server closes it meanwhile; see test_requester_presence."""
    bench = streaming()
    bench.at(1.0, lambda: bench.requester.rest(resting=True))
    bench.at(31.0, lambda: bench.requester.rest(resting=False))
    bench.run(36.0)
    assert len(bench.link.asked) == 1
