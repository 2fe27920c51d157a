# SPDX-License-Identifier: Apache-2.0
"""The beat: missed cycles are counted and never made up for."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from lerobot_serve.ros.node.fixed_rate_loop import FixedRateLoop

PERIOD_NS = 100
WAIT_S = 10.0


class Clock:
    """A clock that a test moves; waiting on `Stop` moves it too."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Stop:
    """Looks like an Event whose wait passes at once, by the fake clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.waits = 0

    def wait(self, timeout_s: float) -> bool:
        self.waits += 1
        self._clock.now_ns += round(timeout_s * 1e9)
        return False

    def is_set(self) -> bool:
        return False


def test_a_beat_waits_for_its_time():
    clock = Clock()
    beat, stop = FixedRateLoop(PERIOD_NS, clock), Stop(clock)
    times_ns = []
    for _ in range(3):
        assert beat.wait(stop)
        times_ns.append(clock.now_ns)
        clock.now_ns += 30
    assert times_ns == [100, 200, 300]
    assert (beat.cycles, beat.missed) == (3, 0)


def test_missed_beats_are_counted_and_not_replayed():
    clock = Clock()
    beat, stop = FixedRateLoop(PERIOD_NS, clock), Stop(clock)
    clock.now_ns = 350
    assert beat.wait(stop)
    assert (clock.now_ns, beat.cycles, beat.missed, stop.waits) == (350, 1, 2, 0)
    assert beat.wait(stop)
    assert (clock.now_ns, beat.cycles, beat.missed, stop.waits) == (400, 2, 2, 1)


@given(st.lists(st.integers(0, 1000), max_size=50))
def test_two_beats_never_share_a_period(works_ns):
    clock = Clock()
    beat, stop, last = FixedRateLoop(PERIOD_NS, clock), Stop(clock), 0
    for work_ns in works_ns:
        clock.now_ns += work_ns
        beat.wait(stop)
        period = clock.now_ns // PERIOD_NS
        assert period > last
        last = period
        assert beat.cycles + beat.missed == period


def test_stop_ends_the_wait():
    beat, stop, waits = FixedRateLoop(int(3600e9)), threading.Event(), []
    thread = threading.Thread(target=lambda: waits.append(beat.wait(stop)))
    thread.start()
    stop.set()
    thread.join(WAIT_S)
    assert waits == [False]
    assert beat.cycles == 0


def test_a_stop_is_seen_even_when_the_beat_is_late():
    clock, stop = Clock(), threading.Event()
    beat = FixedRateLoop(PERIOD_NS, clock)
    clock.now_ns = 500
    stop.set()
    assert not beat.wait(stop)
