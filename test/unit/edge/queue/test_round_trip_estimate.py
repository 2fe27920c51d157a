# SPDX-License-Identifier: Apache-2.0
"""How long answers take: forgotten in time, without warm-up, each server by itself."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.edge.latency import LatencyTracker

S = 10**9
SAMPLES, WINDOW_S, WARM_UP = 4, 2.0, 1


def warm(**settings: object) -> LatencyTracker:
    return LatencyTracker(**{'warm_up': 0, **settings})


def test_a_server_that_is_unknown_has_no_latency():
    tracker = warm()
    tracker.add('a', 0.1, 0)
    assert tracker.maximum('b', 0) is None
    assert tracker.delay_steps('b', 0, step_s=0.1) == 0


@pytest.mark.parametrize(
    ('latency_s', 'steps'), [(0.0, 0), (0.001, 1), (0.5, 1), (0.51, 2), (1.0, 2)]
)
def test_a_delay_counts_every_step_that_it_touches(latency_s, steps):
    tracker = warm()
    tracker.add('a', latency_s, 0)
    assert tracker.delay_steps('a', 0, step_s=0.5) == steps


def test_one_slow_answer_is_forgotten_in_time():
    tracker = warm(window_s=60.0)
    tracker.add('a', 5.0, 0)
    tracker.add('a', 0.1, 1 * S)
    assert tracker.maximum('a', 60 * S) == 5.0
    assert tracker.maximum('a', 60 * S + 1) == 0.1
    assert tracker.maximum('a', 62 * S) is None
    assert tracker.delay_steps('a', 62 * S, step_s=0.1) == 0


def test_one_slow_answer_is_forgotten_after_so_many_others():
    tracker = warm(samples=3)
    tracker.add('a', 5.0, 0)
    tracker.add('a', 0.1, 0)
    tracker.add('a', 0.1, 0)
    assert tracker.maximum('a', 0) == 5.0
    tracker.add('a', 0.1, 0)
    assert tracker.maximum('a', 0) == 0.1


def test_the_first_answers_of_each_session_are_left_out():
    tracker = LatencyTracker(warm_up=2)
    tracker.add('a', 9.0, 0)
    tracker.add('a', 8.0, 0)
    assert tracker.maximum('a', 0) is None
    tracker.add('a', 0.1, 0)
    tracker.begin_session('a')
    assert tracker.maximum('a', 0) == 0.1
    tracker.add('a', 7.0, 0)
    tracker.add('a', 6.0, 0)
    tracker.add('a', 0.2, 0)
    assert tracker.maximum('a', 0) == 0.2


@pytest.mark.parametrize('latency_s', [-0.1, math.nan, math.inf, -math.inf])
def test_what_is_no_time_is_no_answer(latency_s):
    tracker = LatencyTracker(warm_up=1)
    tracker.add('a', latency_s, 0)
    tracker.add('a', 9.0, 0)
    tracker.add('a', latency_s, 0)
    assert tracker.maximum('a', 0) is None
    tracker.add('a', 0.1, 0)
    assert tracker.maximum('a', 0) == 0.1


def test_the_server_unheard_for_longest_makes_room():
    tracker = warm(max_servers=2)
    tracker.add('a', 0.1, 0)
    tracker.add('b', 0.2, 0)
    tracker.begin_session('a')
    tracker.add('c', 0.3, 0)
    assert [tracker.maximum(peer, 0) for peer in 'abc'] == [0.1, None, 0.3]


def test_to_ask_for_servers_does_not_make_them_known():
    tracker = warm(max_servers=1)
    tracker.add('a', 0.1, 0)
    for number in range(100):
        tracker.maximum(f'other_{number}', 0)
    assert tracker.maximum('a', 0) == 0.1


events = st.one_of(
    st.tuples(st.just('begin'), st.sampled_from('ab')),
    st.tuples(st.just('add'), st.sampled_from('ab'), st.floats(0, 10)),
    st.tuples(st.just('pass'), st.integers(0, S)),
)


@given(st.lists(events, max_size=80))
def test_a_window_holds_the_last_answers_of_the_last_seconds(script):
    tracker = LatencyTracker(samples=SAMPLES, window_s=WINDOW_S, warm_up=WARM_UP)
    now_ns, sessions = 0, {'a': [[]], 'b': [[]]}
    for kind, *details in script:
        if kind == 'pass':
            now_ns += details[0]
        elif kind == 'begin':
            tracker.begin_session(*details)
            sessions[details[0]].append([])
        else:
            tracker.add(*details, now_ns)
            sessions[details[0]][-1].append((now_ns, details[1]))
        for peer, of_peer in sessions.items():
            check(tracker, peer, now_ns, expected(of_peer, now_ns))


def expected(sessions: list[list[tuple[int, float]]], now_ns: int) -> list[float]:
    """Return what the window of a server must hold, from all that it ever answered."""
    counted = [answer for session in sessions for answer in session[WARM_UP:]][-SAMPLES:]
    return [latency_s for at_ns, latency_s in counted if now_ns - at_ns <= WINDOW_S * S]


def check(tracker: LatencyTracker, peer: str, now_ns: int, window: list[float]) -> None:
    maximum = tracker.maximum(peer, now_ns)
    steps = tracker.delay_steps(peer, now_ns, step_s=0.03)
    if not window:
        assert (maximum, steps) == (None, 0)
        return
    assert maximum == max(window)
    assert steps * 0.03 >= maximum > (steps - 1) * 0.03
