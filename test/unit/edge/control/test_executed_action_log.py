# SPDX-License-Identifier: Apache-2.0
"""What was commanded, row by row: each row once, with the command that it came to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import sys
import threading

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.controller_rig import arm, Bench, MAX_AGE_NS, STEP_NS

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.contract.data_path.execution_report import (
    decode,
    encode,
    ExecutionReport,
    ROWS_LIMIT,
)
from lerobot_serve.edge.action_queue import ChunkSource, QueuedAction
from lerobot_serve.edge.control.executed_log import ExecutedActionLog


def told(bench: Bench) -> ExecutionReport:
    """Return the next report as it arrives."""
    return decode(encode(bench.controller.take_executed()))


def rows(executed: ExecutionReport) -> list[tuple[int, int, list[float]]]:
    """Return seq, first row and the first joint's commands of each run."""
    return [(run.seq, run.first_row, run.rows[:, 0].tolist()) for run in executed.runs]


def test_nothing_executed_is_nothing_told():
    bench = Bench()
    bench.commands(10)
    executed = told(bench)
    assert (executed.actions, executed.fallbacks, executed.trips, executed.stalls) == (0, 0, 0, 0)
    assert (executed.oldest_age_s, executed.runs) == (0.0, ())


def test_rows_of_two_chunks_are_two_runs():
    bench = Bench()
    bench.plan(0.5, 1.0, seq=1)
    bench.plan(1.5, 2.0, seq=2)
    bench.commands(4)
    bench.plan(2.5, seq=3)
    bench.commands(1)
    executed = told(bench)
    assert rows(executed) == [(1, 0, [0.5, 1.0]), (2, 0, [1.5, 2.0])]
    assert [run.session_epoch for run in executed.runs] == [7, 7]
    assert not any(run.after_pause for run in executed.runs)


def test_it_is_told_as_commanded_not_as_wanted():
    bench = Bench(arm(max_step=0.25))
    bench.plan(1.0, 1.0)
    bench.commands(3)
    executed = told(bench)
    assert rows(executed) == [(1, 0, [0.25, 0.5])]
    assert executed.trips >= 2


def test_rows_that_were_skipped_are_not_told():
    bench = Bench()
    bench.plan(*[0.1 * i for i in range(8)])
    bench.commands(2)
    source = ChunkSource(1, 7, 2, 'episode', bench.now_ns, 'prod', 'fake@0')
    chunk = np.full((8, 1), 0.5, np.float32)
    bench.queue.replace(chunk, source, mark=bench.queue.mark(), delay_rows=0)
    bench.queue.take()
    bench.commands(3)
    (first, second) = told(bench).runs
    assert (first.first_row, len(first.rows), second.first_row, len(second.rows)) == (0, 2, 1, 2)


def test_what_was_commanded_in_between_separates_two_runs():
    bench = Bench()
    bench.plan(0.5, seq=1)
    bench.commands(3)
    bench.plan(1.0, 1.5, seq=2)
    bench.commands(3)
    executed = told(bench)
    assert rows(executed) == [(1, 0, [0.5]), (2, 0, [1.0, 1.5])]
    assert [run.after_pause for run in executed.runs] == [False, True]
    assert (executed.actions, executed.fallbacks, executed.stalls) == (6, 3, 2)


def test_a_chunk_that_was_paused_is_told_as_two_runs():
    bench = Bench()
    bench.plan(0.5, 1.0, 1.5)
    bench.commands(1)
    bench.be(paused=True)
    bench.commands(2)
    bench.be(paused=False)
    bench.commands(3)
    executed = told(bench)
    assert rows(executed) == [(1, 0, [0.5]), (1, 1, [1.0, 1.5])]
    assert executed.runs[1].after_pause
    # an operator paused it; that there was nothing to play came later
    assert (executed.actions, executed.fallbacks) == (6, 1)


def test_what_was_never_sent_is_not_told():
    # nothing begins before it is known where the robot is
    bench = Bench(latch_after_trips=2)
    bench.measured = None
    bench.plan(0.5, 1.0, 1.5, 2.0)
    assert bench.commands(4) == [None] * 4
    bench.plan(0.5)
    executed = told(bench)
    assert (executed.actions, executed.runs) == (0, ())
    assert executed.trips == 0


def test_the_oldest_age_is_that_since_the_last_report():
    bench = Bench()
    bench.plan(1.0, age_ns=90)
    bench.plan(2.0, 3.0, age_ns=-STEP_NS + 5)
    bench.commands(2)
    assert told(bench).oldest_age_s == pytest.approx(90e-9)
    assert told(bench).oldest_age_s == 0.0
    bench.commands(1)
    assert told(bench).oldest_age_s == pytest.approx((5 + STEP_NS) / 1e9)


@given(
    st.lists(st.integers(-3, 3), max_size=12),
    st.integers(1, 3),
    st.sets(st.integers(0, 20), max_size=5),
)
@settings(max_examples=50)
def test_what_is_told_is_what_was_commanded(script, interpolation, reports_at):
    """Negative numbers are steps, the others are chunks of so many rows."""
    bench = Bench(interpolation=interpolation)
    commanded: dict[tuple[int, int], float] = {}
    found: list[tuple[tuple[int, int], float]] = []

    def report() -> None:
        for seq, first, values in rows(told(bench)):
            found.extend(((seq, first + i), value) for i, value in enumerate(values))

    def step() -> None:
        executed = bench.step()
        if executed and executed.planned and executed.judgement.command is not None:
            key = executed.planned.source.seq, executed.planned.row
            commanded[key] = float(np.float32(executed.judgement.command[0]))

    steps = 0
    for number, what in enumerate(script):
        if what > 0:
            bench.plan(*[0.25 * (number + i) for i in range(what)], seq=number + 1)
        for _ in range(-what):
            steps += 1
            step()
            if steps in reports_at:
                report()
    # until what is being played is over
    for _ in range(MAX_AGE_NS // STEP_NS + 2):
        step()
    report()
    assert [key for key, _ in found] == list(commanded)
    assert dict(found) == commanded


def noted(log: ExecutedActionLog, count: int) -> None:
    source = ChunkSource(1, 1, 1, 'e', 0, 'prod', 'fake@0')
    for row in range(count):
        log.record(QueuedAction(np.zeros(1), source, row), np.full(1, float(row)), 0)
    log.end_row()


def test_of_too_many_rows_the_older_are_dropped_and_counted():
    log = ExecutedActionLog(1)
    noted(log, ROWS_LIMIT + 5)
    ((run,), _) = log.take_runs()
    assert (run.first_row, len(run.rows)) == (5, ROWS_LIMIT)
    assert log.dropped_rows == 5
    noted(log, ROWS_LIMIT)
    assert len(log.take_runs()[0][0].rows) == ROWS_LIMIT
    assert log.dropped_rows == 5


def test_a_robot_of_very_many_actions_is_told_of_in_part():
    actions = tuple(
        ActionLimit(f'j{i}', f'j{i}', Motion.POSITION, -1.0, 1.0, 1.0) for i in range(3000)
    )
    log = ExecutedActionLog(len(actions))
    source = ChunkSource(1, 1, 1, 'e', 0, 'prod', 'fake@0')
    for row in range(100):
        log.record(QueuedAction(np.zeros(3000), source, row), np.zeros(3000), 0)
    log.end_row()
    runs, _ = log.take_runs()
    assert len(decode(encode(ExecutionReport(runs=runs))).runs[0].rows) == 100 - log.dropped_rows


def test_between_two_threads_no_row_is_lost_and_none_told_twice():
    log, done, count = ExecutedActionLog(1), threading.Event(), 20_000
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def play() -> None:
        source = ChunkSource(1, 1, 1, 'e', 0, 'prod', 'fake@0')
        for row in range(count):
            log.record(QueuedAction(np.zeros(1), source, row), np.full(1, float(row)), row)
        log.end_row()
        done.set()

    def listen() -> list[int]:
        found = []
        is_last = False
        while not is_last:
            is_last = done.is_set()
            for run in log.take_runs()[0]:
                assert run.rows[:, 0].tolist() == list(
                    range(run.first_row, run.first_row + len(run.rows))
                )
                found += range(run.first_row, run.first_row + len(run.rows))
        return found

    try:
        with ThreadPoolExecutor(2) as pool:
            played, found = pool.submit(play), pool.submit(listen)
            played.result(60)
            told_rows = found.result(60)
    finally:
        sys.setswitchinterval(interval_s)
    assert told_rows == sorted(set(told_rows))
    assert len(told_rows) + log.dropped_rows == count
