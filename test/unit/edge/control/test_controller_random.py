# SPDX-License-Identifier: Apache-2.0
"""The controller under random scripts: nothing stale, nothing past the cage, nothing infinite."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from support.edge.controller_rig import arm, Bench, MAX_AGE_NS, STEP_NS

from lerobot_serve.edge.action_queue import ChunkSource
from lerobot_serve.edge.control.rungs import RungKind
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.session.connection import ConnectionState

MAX_STEP = 0.5
angles = st.floats(-9, 9, width=32) | st.floats(width=32)
places = st.floats(-9, 9, width=32) | st.just(float('nan'))
rows = st.lists(st.tuples(angles, angles), min_size=1, max_size=8)
ages = st.integers(-STEP_NS, 2 * MAX_AGE_NS)
events = st.one_of(
    st.tuples(st.just('append'), rows, ages),
    st.tuples(st.just('replace'), rows, ages),
    st.tuples(st.just('steps'), st.integers(1, 12)),
    st.tuples(st.just('steps'), st.integers(1, 12)),
    st.tuples(st.just('jump'), st.integers(0, 3 * MAX_AGE_NS)),
    st.tuples(st.just('moved'), st.none() | st.tuples(places, places)),
    st.tuples(st.just('be'), st.just('paused'), st.booleans()),
    st.tuples(st.just('be'), st.just('running'), st.booleans()),
    st.tuples(
        st.just('be'),
        st.just('state'),
        st.sampled_from([ConnectionState.STREAMING, ConnectionState.DEAD]),
    ),
    st.tuples(st.just('level'), st.sampled_from([0.0, 2.0])),
    st.sampled_from([('clear',), ('lift stop',), ('reset cage',)]),
)


class Script:
    """Makes things happen to a bench and looks at each step."""

    def __init__(self, **robot: object) -> None:
        self.bench = Bench(arm(MAX_STEP, joints=2), **robot)
        self.before: np.ndarray | None = None
        self.cleared_before_seq = self.seq = 0

    def happen(self, event: str, *details: object) -> None:
        bench = self.bench
        if event == 'steps':
            for _ in range(details[0]):
                self.step()
        elif event == 'jump':
            bench.now_ns += details[0]
        elif event == 'moved':
            bench.measured = None if details[0] is None else np.array(details[0])
        elif event == 'be':
            bench.be(**{details[0]: details[1]})
        elif event == 'level':
            bench.level = details[0]
        elif event == 'lift stop':
            bench.controller.clear_stop()
        elif event == 'reset cage':
            bench.controller.reset_cage()
        elif event == 'clear':
            bench.queue.clear()
            self.cleared_before_seq = self.seq
        else:
            self.merge(event, np.array(details[0], np.float32), details[1])

    def merge(self, how: str, chunk: np.ndarray, age_ns: int) -> None:
        self.seq += 1
        queue, mark = self.bench.queue, self.bench.queue.mark()
        source = ChunkSource(self.seq, 7, 0, 'e', self.bench.now_ns - age_ns, 'prod', 'fake@0')
        if how == 'append':
            queue.append(chunk, source, mark=mark)
        else:
            queue.replace(chunk, source, mark=mark, delay_rows=2)

    def step(self) -> None:
        bench, now_ns = self.bench, self.bench.now_ns
        rows_left = bench.queue.rows_left
        executed = bench.step()
        assert bench.queue.rows_left <= rows_left
        if executed is None:
            self.before = None
            return
        self.check(executed, now_ns)

    def check(self, executed: ExecutedStep, now_ns: int) -> None:
        planned, command = executed.planned, executed.judgement.command
        assert command is self.bench.cage.released[-1]
        if planned:
            assert executed.decision.kind is RungKind.POLICY
            age_ns = now_ns - planned.source.captured_ns
            # the oldest that is mixed in counts
            assert max(0, age_ns) <= executed.age_ns <= MAX_AGE_NS
            # nothing of what was cleared
            assert planned.source.seq > self.cleared_before_seq
        else:
            assert executed.decision.kind is not RungKind.POLICY
        if command is None:
            return
        assert np.isfinite(command).all()
        before = self.bench.measured if self.before is None else self.before
        assert before is not None
        assert (np.abs(command - before) <= MAX_STEP * (1 + 1e-6)).all()
        self.before = command


@settings(max_examples=200)
@given(
    st.lists(events, max_size=30),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 4]),
    st.sampled_from([0, 5]),
)
def test_no_script_plays_what_is_stale_or_cleared_or_did_not_pass_the_cage(
    script, interpolation, resume_rows, latch_after_trips
):
    run = Script(
        interpolation=interpolation,
        resume_rows=resume_rows,
        latch_after_trips=latch_after_trips,
    )
    for event in script:
        run.happen(*event)
    counted = run.bench.controller
    assert counted.stalls <= run.bench.dries <= 12 * len(script)
    assert counted.dropped.keys() <= {'stale_action'}
