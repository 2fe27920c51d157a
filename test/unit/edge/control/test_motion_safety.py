# SPDX-License-Identifier: Apache-2.0
"""
A control step under random operators, connections, sensors, interlocks and ticks: what moves.

The checks know the numbers that left the controller and what was decided around it, and nothing
of authority, ladder and cage.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from support.edge.controller_rig import arm, Bench, STEP_NS, STEP_S

from lerobot_serve.cage.description import Interlock
from lerobot_serve.edge.control.rungs import Rung, RungKind
from lerobot_serve.edge.session.connection import ConnectionState

MAX_STEP, LIMIT = 0.5, 100.0
POSE = (Rung(RungKind.RAMP, 0.1), Rung(RungKind.INITIAL_POSE, 0.5), Rung(RungKind.STOP_SERVICE))
LADDER = (Rung(RungKind.RAMP, 0.1), Rung(RungKind.HOLD, 0.1), Rung(RungKind.STOP_SERVICE))
FULL = Interlock('full', 'level', None, 1.0, {'j1.pos': -3.0})

places = st.floats(-3, 3)
events = st.one_of(
    st.tuples(st.just('plan'), st.lists(places, min_size=1, max_size=6)),
    st.tuples(st.just('plan'), st.lists(places, min_size=1, max_size=6)),
    # in tenths of a control step
    st.tuples(st.just('ticks'), st.lists(st.sampled_from([10] * 8 + [0, 1, 4, 9, 12, 19, 25]))),
    st.tuples(st.just('ticks'), st.lists(st.sampled_from([10]), min_size=6, max_size=12)),
    st.tuples(st.just('pause'), st.booleans()),
    st.tuples(st.just('run'), st.booleans()),
    st.tuples(
        st.just('state'),
        st.sampled_from(
            [ConnectionState.STREAMING, ConnectionState.STALLED, ConnectionState.DEAD]
        ),
    ),
    st.tuples(st.just('level'), st.sampled_from([0.0, 0.0, 2.0])),
    st.tuples(st.just('push'), st.tuples(places, places)),
    st.sampled_from([('blind',), ('misread',), ('nan',), ('reset cage',), ('lift',), ('clear',)]),
)


class Life:
    """A robot that follows its commands, and what was seen of them."""

    def __init__(self, **robot: object) -> None:
        self.bench = Bench(
            arm(MAX_STEP, joints=2),
            ladder=LADDER,
            teardown=POSE,
            interlocks=(FULL,),
            latch_after_trips=8,
            start_samples=3,
            tolerance_share=0.05,
            state_timeout_s=0.1,
            **robot,
        )
        self.bench.level = 0.0
        self.bench.measured = np.zeros(2)
        self.there = np.zeros(2)
        self.sees = 'well'
        # of what was sent: when and what
        self.sent: list[tuple[int, np.ndarray]] = []
        self.last: np.ndarray | None = None
        self.speed = np.zeros(2)
        self.was_stopped = False

    def happen(self, event: str, *details: object) -> None:
        bench = self.bench
        if event == 'ticks':
            for tenths in details[0]:
                bench.now_ns += tenths * STEP_NS // 10 - STEP_NS
                self.tick()
        elif event == 'plan':
            bench.plan(*[[value, value] for value in details[0]])
        elif event == 'push':
            self.there = np.array(details[0])
        elif event == 'level':
            bench.level = details[0]
        elif event == 'reset cage':
            bench.controller.reset_cage()
        elif event == 'lift':
            self.was_stopped = False
            bench.controller.clear_stop()
        elif event == 'clear':
            bench.queue.clear()
        elif event == 'nan':
            bench.plan([float('nan')] * 2)
        elif event in ('blind', 'misread'):
            self.sees = event if self.sees == 'well' else 'well'
        else:
            name = {'pause': 'paused', 'run': 'running', 'state': 'state'}[event]
            bench.be(**{name: details[0]})

    def tick(self) -> None:
        bench = self.bench
        measured = self.there if self.sees == 'well' else np.array([628.0, 0.0])
        bench.measured = None if self.sees == 'blind' else measured
        latched, stops = bench.controller.latched, bench.stops
        skipped, now_ns = bench.controller.steps_skipped, bench.now_ns
        executed = bench.step()
        if bench.controller.steps_skipped > skipped:
            assert executed is None
            return
        command = executed and executed.judgement.command
        self.check(command, now_ns, latched=latched)
        self.was_stopped |= bench.stops > stops
        if command is None:
            self.last, self.speed = None, np.zeros(2)
            return
        self.speed = (command - self.last) / STEP_S if self.last is not None else np.zeros(2)
        self.last = command
        self.there = command.copy()

    def check(self, command: np.ndarray | None, now_ns: int, *, latched: bool) -> None:
        orders, forces = self.bench.orders, self.bench.level > 1 and self.sees != 'blind'
        if command is None:
            # from agreeing samples or a last command an interlock acts whatever else is so
            assert not (forces and self.last is not None)
            return
        assert np.isfinite(command).all()
        assert (abs(command) <= LIMIT).all()
        self.sent.append((now_ns, command))
        # from where the robot was, however it was misread
        before = self.there if self.last is None else self.last
        assert (abs(command - before) <= MAX_STEP * (1 + 1e-6)).all()
        if self.last is None:
            return
        speed = (command - self.last) / STEP_S
        free = [True, not forces]
        if orders.paused or not orders.running or self.was_stopped or latched:
            assert (abs(speed) <= abs(self.speed) + 1e-9)[free].all()
            assert (speed * self.speed >= -1e-9)[free].all()


@settings(max_examples=300, deadline=None)
@given(st.lists(events, max_size=40), st.booleans())
def test_whatever_happens_nothing_begins_to_move_that_must_not(script, releases):
    life = Life(is_silent_while_paused=releases)
    for event in script:
        life.happen(*event)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(places, min_size=30, max_size=30),
    st.lists(st.integers(0, 3 * STEP_NS) | st.integers(0, STEP_NS // 10), max_size=60),
)
def test_in_any_window_it_moves_no_further_than_its_time_allows_and_half_a_step(rows, waits_ns):
    life = Life()
    life.bench.measured = life.there
    for _ in range(3):
        life.tick()
    for number, wait_ns in enumerate(waits_ns):
        if number % 10 == 0:
            life.bench.plan(*[[9.0 * value, -9.0 * value] for value in rows])
        life.bench.now_ns += wait_ns - STEP_NS
        life.tick()
    sent = life.sent
    for first, (begin_ns, begin) in enumerate(sent):
        for end_ns, end in sent[first + 1 :]:
            allowed = MAX_STEP * ((end_ns - begin_ns) / STEP_NS + 0.5)
            assert (abs(end - begin) <= allowed * (1 + 1e-6)).all()


def test_two_ticks_half_a_millisecond_apart_are_one_command():
    life = Life()
    life.bench.plan(*[[9.0, 9.0]] * 9)
    for tenths in (10, 10, 10, 19, 0, 10, 11, 10):
        life.bench.now_ns += tenths * STEP_NS // 10 - STEP_NS
        life.tick()
    assert life.bench.controller.steps_skipped == 1
    assert [round(float(command[0]), 6) for _, command in life.sent] == [0.5, 1.0, 1.5, 2.0, 2.5]
