# SPDX-License-Identifier: Apache-2.0
"""The queue between real threads: no row of an ended episode, none twice, none out of order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
import sys
import threading

import numpy as np
import pytest

from lerobot_serve.edge.action_queue import (
    ActionQueue,
    ChunkSource,
    Leftover,
    QueuedAction,
    QueueMark,
)

CHUNKS = 4000
ROWS = 5
TAKERS = 2
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def impatient_threads():
    """Let threads take turns as often as they can."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


class Stress:
    """Threads around one queue; `episode` of a source is the epoch in which it was asked for."""

    def __init__(self) -> None:
        self.queue = ActionQueue()
        self.done = threading.Event()
        self.start = threading.Barrier(TAKERS + 3, timeout=WAIT_S)
        self.rows_merged = 0

    def run(self, merge: Callable[[int], None]) -> list[list[QueuedAction]]:
        """Merge, take, clear and look at once; return what each taker took."""
        with ThreadPoolExecutor(TAKERS + 3, initializer=self.start.wait) as pool:
            takers = [pool.submit(self._take) for _ in range(TAKERS)]
            others = [pool.submit(self._clear), pool.submit(self._look)]
            others.append(pool.submit(self._merge, merge))
            return [result(taker) for taker in takers + others][:TAKERS]

    def _merge(self, merge: Callable[[int], None]) -> None:
        try:
            for seq in range(CHUNKS):
                merge(seq)
        finally:
            self.done.set()

    def _take(self) -> list[QueuedAction]:
        taken = []
        while len(taken) < CHUNKS * ROWS:
            done, epoch = self.done.is_set(), self.queue.epoch
            planned = self.queue.take()
            if planned:
                assert planned.source.episode >= epoch, 'a row from before the clear was taken'
                taken.append(planned)
            elif done:
                break
        return taken

    def _clear(self) -> None:
        """Clear whenever something was played, so that something is."""
        rows_taken = 0
        while not self.done.is_set():
            if self.queue.rows_taken != rows_taken:
                rows_taken = self.queue.rows_taken
                self.queue.clear()

    def _look(self) -> None:
        """What is left is always a piece of one chunk after the other."""
        while not self.done.is_set():
            left = self.queue.leftover(3 * ROWS)
            numbers = left.robot[:, 0].tolist() if len(left.robot) else []
            assert 0 <= self.queue.rows_left <= CHUNKS * ROWS
            assert (-left.model).tolist() == left.robot.tolist()
            assert numbers == sorted(set(numbers))
            check_start(left, numbers)

    def ask(self, seq: int) -> tuple[QueueMark, np.ndarray, ChunkSource]:
        """Return a request's mark and its answer, now and then with a clear in between."""
        mark = self.queue.mark()
        robot = np.arange(seq * ROWS, (seq + 1) * ROWS, dtype=np.float64)[:, None]
        if seq % 50 == 0:
            self.queue.clear()
        return mark, robot, ChunkSource(seq, 7, mark.epoch, 'episode', 0, 'prod', 'fake@0')

    def append(self, seq: int) -> None:
        mark, robot, source = self.ask(seq)
        if self.queue.append(robot, source, mark=mark, model=-robot):
            self.rows_merged += ROWS

    def replace(self, seq: int) -> None:
        mark, robot, source = self.ask(seq)
        skipped = self.queue.replace(robot, source, mark=mark, delay_rows=2, model=-robot)
        assert skipped in (None, 0, 1, 2)


def result(future: Future) -> object:
    return future.result(WAIT_S)


def check_start(left: Leftover, numbers: list[float]) -> None:
    if numbers:
        assert left.source.seq == numbers[0] // ROWS
        assert left.source.episode >= left.mark.epoch


def check_order(taken: list[list[QueuedAction]]) -> int:
    """Check that each row was taken once and in order; return how many were."""
    everything = set()
    for planned in taken:
        order = [(one.source.seq, one.row) for one in planned]
        assert order == sorted(set(order))
        assert not everything & set(order)
        everything |= set(order)
        for one in planned:
            assert one.action.tolist() == [one.source.seq * ROWS + one.row]
    return len(everything)


def test_appended_rows_are_played_once_in_order_or_cleared():
    stress = Stress()
    rows_played = check_order(stress.run(stress.append))
    queue = stress.queue
    assert queue.chunks_refused >= CHUNKS // 50
    assert queue.rows_taken == rows_played > 0
    assert rows_played + queue.rows_cleared == stress.rows_merged
    assert queue.rows_left == 0


def test_replaced_rows_are_played_once_in_order_or_never():
    stress = Stress()
    rows_played = check_order(stress.run(stress.replace))
    assert stress.queue.chunks_refused >= CHUNKS // 50
    assert stress.queue.rows_taken == rows_played > 0
