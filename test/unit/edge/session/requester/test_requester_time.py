# SPDX-License-Identifier: Apache-2.0
"""The requester and the clock: when it asks, when it is late, when it rests, and that it waits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.requester_rig import ABC, Simulation
from support.replacing import replace

from lerobot_serve.contract.data_path.execution_report import decode, ExecutionReport, Halt
from lerobot_serve.contract.schema import Status
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.edge.inputs.latest import InputsNotReady
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.pipeline import EpisodeRequest

ONE = ('/a',)
GONE = ServerUnreachable('no answer')
# 2 s to play, of which half a second is left when the next one is asked for
LONG = np.zeros((20, 3), np.float32)


def streaming(**pace: object) -> Simulation:
    """Return a robot that plays what it is given, ten rows a second."""
    bench = Simulation(servers=ONE, merge_mode='replace', **pace)
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
    late, healed = bench.changes[1:]
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
    bench.at(1.0, lambda: bench.transport.refusals.update({'/a': GONE}))
    bench.at(1.0, lambda: bench.answers.update({'/a': None}))
    bench.run(20.0)
    assert bench.states == ['STREAMING', 'RECONNECTING', 'DEAD']
    lost, dead = bench.changes[1:]
    # waits up to 2 s for a server that is gone
    assert 10.0 <= (dead.at_ns - lost.at_ns) / 1e9 <= 12.1
    assert dead.reason.startswith('no session for 10 s; /a: ')


def test_who_rests_asks_for_nothing_and_then_goes_on():
    bench = streaming(degraded_after_s=0.5)
    bench.at(1.0, lambda: bench.requester.set_idle(idle=True))
    bench.at(8.0, lambda: bench.requester.set_idle(idle=False))
    bench.run(9.0)
    assert asked_s(bench) == [0.0, 8.0]
    # nothing was wanted meanwhile
    assert bench.states == ['STREAMING']
    assert bench.transport.opened == [('/a', 0)]


def halt(bench: Simulation, *, halted: bool = True) -> None:
    """Let the safety cage latch, or a person clear it."""
    bench.executed = ExecutionReport(halt=Halt.LATCHED if halted else Halt.NONE)
    bench.requester.set_halted(halted=halted)
    bench.requester.set_idle(idle=halted)


def halts_of(bench: Simulation) -> list[tuple[float, int]]:
    """Return the time and the reported halt of each request."""
    reports = (decode(request.extensions[0]) for _, _, request in bench.requests)
    return [(at_s, report.halt) for at_s, report in zip(asked_s(bench), reports, strict=True)]


def test_a_robot_that_halts_reports_it_once_with_its_last_request():
    bench = streaming(degraded_after_s=0.5)
    bench.at(1.0, lambda: halt(bench))
    bench.at(8.0, lambda: halt(bench, halted=False))
    bench.run(9.0)
    assert halts_of(bench) == [(0.0, 0), (1.0, 1), (8.0, 0)]
    assert bench.states == ['STREAMING']


def test_a_report_of_a_halt_that_is_lost_is_repeated_a_few_times():
    bench = streaming(request_timeout_s=1.0, max_consecutive_timeouts=100)
    bench.at(1.0, lambda: (bench.answers.update({'/a': None}), halt(bench)))
    bench.run(60.0)
    assert [at_s for at_s, halt in halts_of(bench) if halt] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_halt_without_inputs_is_given_up():
    bench = streaming()

    def no_inputs(*_: object) -> None:
        raise InputsNotReady('no camera')

    bench.at(1.0, lambda: (setattr(bench.history, 'take', no_inputs), halt(bench)))
    bench.run(60.0)
    assert asked_s(bench) == [0.0]


def test_who_rests_before_there_is_a_session_opens_none():
    bench = Simulation(servers=ONE)
    bench.requester.set_idle(idle=True)
    bench.at(3.0, lambda: bench.requester.set_idle(idle=False))
    bench.run(3.2)
    assert asked_s(bench)[0] == 3.0


def test_who_rests_has_a_lost_session_opened_again_and_is_not_given_up_for_resting():
    bench = streaming(max_offline_s=10.0)
    bench.at(1.49, lambda: bench.answers.update({'/a': {'status': Status.NO_SESSION}}))
    # on its way at that moment
    bench.at(1.58, lambda: bench.requester.set_idle(idle=True))
    bench.run(60.0)
    assert ConnectionState.DEAD.name not in bench.states
    assert len(bench.transport.opened) == 2
    assert asked_s(bench) == [0.0, 1.55]


def test_an_answer_on_its_way_still_counts_while_it_rests():
    bench = streaming()
    bench.at(0.02, lambda: bench.requester.set_idle(idle=True))
    bench.run(0.5)
    assert bench.pipeline.status.chunks_accepted == 1


def test_a_new_pace_holds_from_the_next_episode_on():
    bench = streaming()
    bench.at(0.3, lambda: change(bench))
    bench.at(4.0, lambda: bench.requester.begin_episode(EpisodeRequest()))
    bench.run(6.0)
    # asked for with 0.5 s left, and from 4 s on with 1.5 s left
    times = asked_s(bench)
    assert times[:2] == [0.0, pytest.approx(1.5, abs=0.11)]
    after = [at_s for at_s in times if at_s >= 4.0]
    assert after[:2] == [4.0, pytest.approx(4.6, abs=0.11)]


def change(bench: Simulation) -> None:
    bench.requester.next_settings = replace(bench.settings, request_threshold_s=1.5)


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
        bench.transport.refusals[details[0]] = GONE
    elif event == 'gone':
        bench.transport.refusals.pop(details[0], None)
    elif event == 'round trip':
        bench.round_trip_s = details[0]
    elif event == 'rest':
        bench.requester.set_idle(idle=details[0])
    elif event == 'begin':
        bench.requester.begin_episode(EpisodeRequest())
    else:
        bench.actions.clear()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 10), events), max_size=20), st.integers(1, 3))
def test_whatever_happens_one_request_is_in_flight_and_it_never_spins(
    script, max_consecutive_timeouts
):
    bench = Simulation(merge_mode='replace', max_consecutive_timeouts=max_consecutive_timeouts)
    send_request = bench.pipeline.send_request

    def alone(settings: object) -> object:
        # one whose time is over is given up as the next is sent
        assert bench.session.in_flight is None or bench.session.is_overdue
        return send_request(settings)

    bench.pipeline.send_request = alone
    bench.play(10.0)
    for at_s, event in script:
        bench.at(at_s, lambda event=event: happen(bench, *event))
    bench.run(10.0)
    # at most one for each round trip, and a few that events brought about
    assert len(bench.requests) <= 210 + 4 * len(script)
    assert len(bench.transport.opened) <= 210 + 4 * len(script)
    assert len(bench.waits) <= 1000 + 4 * len(script)
    if bench.pipeline.status.server:
        assert bench.transport.left[-1] == bench.pipeline.status.server


@pytest.mark.parametrize(('step_s', 'buffer_s', 'rows'), [(0.1, 0.3, 3), (0.1, 0.6, 6)])
def test_what_rounding_leaves_to_wait_for_does_not_make_it_spin(step_s, buffer_s, rows):
    assert rows * step_s > buffer_s
    bench = Simulation(
        servers=ONE, step_s=step_s, request_threshold_s=buffer_s, merge_mode='replace'
    )
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


def test_it_waits_until_its_buffer_is_reached_and_not_until_the_next_look():
    bench = streaming(request_threshold_s=0.65)
    bench.answers['/a'] = {'robot': LONG[:7]}
    bench.run(0.5)
    # 0.7 s in the queue: 0.05 s more than the buffer, half of the time between two looks
    assert pytest.approx(0.05) in bench.waits


def test_what_is_wanted_while_it_rests_is_not_late():
    bench = streaming(degraded_after_s=1.0)
    # wanted from 1.5 s on, but the camera is gone
    bench.at(1.0, lambda: bench.observations.errors.extend([InputsNotReady('front is old')] * 100))
    bench.at(2.0, lambda: bench.requester.set_idle(idle=True))
    bench.at(6.0, bench.observations.errors.clear)
    bench.at(6.0, lambda: bench.requester.set_idle(idle=False))
    bench.run(7.0)
    assert bench.states == ['STREAMING']


def test_a_camera_that_is_gone_degrades():
    bench = streaming(degraded_after_s=1.0)
    bench.at(
        1.0, lambda: bench.observations.errors.extend([InputsNotReady('front is old')] * 1000)
    )
    bench.run(4.0)
    assert bench.states == ['STREAMING', 'DEGRADED']


def test_who_rested_for_long_goes_on_in_its_session():
    """Presence tells when the server closes it meanwhile; see test_requester_presence."""
    bench = streaming()
    bench.at(1.0, lambda: bench.requester.set_idle(idle=True))
    bench.at(31.0, lambda: bench.requester.set_idle(idle=False))
    bench.run(36.0)
    assert len(bench.transport.opened) == 1
