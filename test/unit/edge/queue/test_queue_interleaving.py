# SPDX-License-Identifier: Apache-2.0
"""
Two calls of the queue at once: one is stopped before each of its lines in turn while the other
runs. Whatever the line, it must look as if one call had come wholly before the other.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
import sys
import threading
from types import FrameType

import numpy as np
import pytest

from lerobot_serve.edge import action_queue
from lerobot_serve.edge.action_queue import ActionQueue, ChunkSource, QueueMark

WAIT_S = 10.0
ASKED = QueueMark(0, 1)
Call = Callable[[ActionQueue], object]


def source(seq: int) -> ChunkSource:
    return ChunkSource(seq, 7, 0, 'episode', 10 * seq, 'prod', 'fake@0')


def rows(first: int, number: int) -> np.ndarray:
    return np.arange(first, first + number, dtype=np.float32)[:, None]


def take(queue: ActionQueue) -> object:
    planned = queue.take()
    return planned and planned.action.tolist()


def take_fresh(queue: ActionQueue) -> object:
    planned, dropped = queue.take_fresh(20)
    return planned and planned.action.tolist(), dropped


def append(queue: ActionQueue) -> object:
    return queue.append(rows(30, 2), source(3), mark=ASKED, model=-rows(30, 2))


def replace(queue: ActionQueue) -> object:
    return queue.replace(rows(40, 3), source(4), mark=ASKED, delay_rows=9, model=-rows(40, 3))


def leftover(queue: ActionQueue) -> object:
    left = queue.leftover(3)
    return left.mark, left.robot.tolist(), left.model.tolist(), left.source and left.source.seq


def rows_left(queue: ActionQueue) -> object:
    return queue.rows_left


CALLS = (take, take_fresh, append, replace, leftover, rows_left, ActionQueue.mark)
CALLS += (ActionQueue.clear,)


class WatchedLock:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, waited_for: threading.Event) -> None:
        self._lock, self._waited_for = threading.Lock(), waited_for

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waited_for.set()
            assert self._lock.acquire(timeout=WAIT_S)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Meeting:
    """A queue in which `first` is stopped before its line number `line`, and `second` begins."""

    def __init__(self, first: Call, second: Call, line: int | None = None) -> None:
        self.queue = filled()
        self.results: dict[str, object] = {}
        self.lines_left = line
        # second has ended, or waits for first
        self.may_go_on = threading.Event()
        self.queue._lock = WatchedLock(self.may_go_on)
        self.other = threading.Thread(target=self._run_second, args=(second,))
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            self.results['first'] = first(self.queue)
        finally:
            sys.settrace(before)
        self.line_was_reached = bool(self.other.ident)
        if not self.line_was_reached:
            self.other.start()
        self.other.join(WAIT_S)

    def _run_second(self, second: Call) -> None:
        try:
            self.results['second'] = second(self.queue)
        except Exception as error:
            self.results['second'] = error
        self.may_go_on.set()

    def _trace(self, frame: FrameType, event: str, _: object) -> object:
        if frame.f_code.co_filename != action_queue.__file__:
            return None
        if event == 'line' and self.lines_left is not None:
            self.lines_left -= 1
            if self.lines_left < 0 and not self.other.ident:
                self.other.start()
                assert self.may_go_on.wait(WAIT_S)
        return self._trace

    def outcome(self) -> tuple[object, ...]:
        """Return all that anybody can see afterwards."""
        queue, left = self.queue, []
        seen = (queue.mark(), queue.rows_left, queue.rows_cleared, queue.chunks_refused)
        while planned := queue.take():
            left.append(planned.action.tolist())
        return self.results['first'], self.results['second'], seen, left


def filled() -> ActionQueue:
    """Return a queue with the last row of an old chunk and one of a newer one."""
    queue = ActionQueue()
    mark = queue.mark()
    queue.append(rows(10, 3), source(1), mark=mark, model=-rows(10, 3))
    queue.append(rows(20, 1), source(2), mark=mark, model=-rows(20, 1))
    queue.take()
    queue.take()
    return queue


def in_turn(first: Call, second: Call) -> tuple[object, ...]:
    return Meeting(first, second).outcome()


@pytest.mark.parametrize('second', CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize('first', CALLS, ids=lambda call: call.__name__)
def test_two_calls_at_once_are_two_calls_in_turn(first, second):
    first_then_second = in_turn(first, second)
    second_result, first_result, *seen = in_turn(second, first)
    allowed = (first_then_second, (first_result, second_result, *seen))
    for line in count():
        meeting = Meeting(first, second, line)
        assert meeting.outcome() in allowed, f'stopped before line {line}'
        if not meeting.line_was_reached:
            break
    assert line > 0
