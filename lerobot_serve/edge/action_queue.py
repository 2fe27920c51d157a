# SPDX-License-Identifier: Apache-2.0
"""
The action queue: actions not yet executed, in robot space and model space.

A chunk replaces the queue, less its elapsed rows, or is appended to it; rows are never blended. A
request carries a mark of the queue and its reply is merged with that mark: a chunk requested
before the last `clear` is refused, so that no row of an ended episode is executed.

The tick thread takes, the request thread marks and merges, any thread clears at the end of an
episode, or when a person hands the robot back. No thread waits for a copy: a chunk is copied
before the lock is taken, a prefix after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
import threading
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import Float32Array, FloatArray
from lerobot_serve.contract.data_path.message_parts import NO_ACTIONS

# of the delay in rows by the clock, the rows taken since the request, and the rows of the chunk;
# returns the first row to execute, from 0 to all of them
DelayRule = Callable[[int, int, int], int]


def moving_time(latency_rows: int, taken_rows: int, chunk_rows: int) -> int:
    """
    Skip the elapsed rows, at most those the robot executed: the first chunk of an episode starts
    with its first row, however late it is.
    """
    return max(0, min(latency_rows, taken_rows, chunk_rows))


def elapsed_time(latency_rows: int, _taken_rows: int, chunk_rows: int) -> int:
    """Skip the elapsed rows, within the chunk (LeRobot 0.5 and 0.6)."""
    return max(0, min(latency_rows, chunk_rows))


def lerobot(latency_rows: int, _taken_rows: int, chunk_rows: int) -> int:
    """Slice at the elapsed rows; a negative delay keeps the tail (LeRobot 0.4)."""
    return slice(latency_rows, None).indices(chunk_rows)[0]


DELAY_RULES: dict[str, DelayRule] = {
    'moving_time': moving_time,
    'elapsed_time': elapsed_time,
    'lerobot': lerobot,
}


Element = TypeVar('Element', bound=np.float32 | np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkSource:
    """Origin of the rows of a chunk."""

    seq: int
    session_epoch: int
    episode: int
    episode_id: str
    captured_ns: int
    slot: str
    policy: str


@dataclass(frozen=True, slots=True, eq=False)
class QueuedAction:
    """One action to execute; read-only."""

    action: FloatArray
    source: ChunkSource
    row: int


@dataclass(frozen=True, slots=True)
class QueueMark:
    """A position in the queue's history: number of clears, and rows taken since start."""

    epoch: int
    rows_taken: int


@dataclass(frozen=True, slots=True, eq=False)
class Leftover:
    """
    Rows not taken at `mark`, next one first, in both units. `policy` and `source` are those of the
    first row; without rows they are empty.
    """

    mark: QueueMark
    model: Float32Array = field(default_factory=lambda: NO_ACTIONS)
    robot: FloatArray = field(default_factory=lambda: NO_ACTIONS)
    policy: str = ''
    source: ChunkSource | None = None


class _QueuedChunk:
    """The remaining rows of one chunk, from `next` on; `model` may be empty."""

    __slots__ = ('model', 'next', 'robot', 'source')

    def __init__(self, robot: FloatArray, model: Float32Array, source: ChunkSource) -> None:
        if len(model) not in (0, len(robot)):
            raise ValueError(
                f'a chunk of {len(robot)} actions has {len(model)} rows in the units of the '
                'policy; give as many, or none'
            )
        self.robot, self.model, self.source, self.next = (
            read_only_copy(robot),
            read_only_copy(model),
            source,
            0,
        )

    @property
    def left(self) -> int:
        return len(self.robot) - self.next

    @property
    def kind(self) -> tuple[str, int, int]:
        """Key that all rows of one prefix share."""
        return self.source.policy, self.robot.shape[1], self.model.shape[1]


class ActionQueue:
    """Thread-safe queue of chunks. `rule` may change between two chunks."""

    def __init__(self, rule: DelayRule = moving_time) -> None:
        self.rule = rule
        self.rows_cleared = 0
        self.chunks_refused = 0
        # each has at least one row
        self._chunks: deque[_QueuedChunk] = deque()
        self._epoch = 0
        self._episodes_ended = 0
        self._taken = 0
        self._lock = threading.Lock()

    def take(self) -> QueuedAction | None:
        """Return the next action and advance; None if empty."""
        return self.take_fresh(None)[0]

    def take_fresh(self, oldest_ns: int | None) -> tuple[QueuedAction | None, int]:
        """
        Return the next action whose observation was captured at `oldest_ns` or later, and how many
        older ones were dropped before it. Those do not count as taken: the robot did not execute
        them.
        """
        with self._lock:
            dropped = 0 if oldest_ns is None else self._drop_older(oldest_ns)
            if not self._chunks:
                return None, dropped
            chunk = self._chunks[0]
            row = chunk.next
            chunk.next += 1
            self._taken += 1
            if not chunk.left:
                self._chunks.popleft()
        return QueuedAction(chunk.robot[row], chunk.source, row), dropped

    def drop_older(self, oldest_ns: int) -> int:
        """
        Drop the next actions whose observation was captured before `oldest_ns`; return how many.
        """
        with self._lock:
            return self._drop_older(oldest_ns)

    def _drop_older(self, oldest_ns: int) -> int:
        dropped = 0
        while self._chunks and self._chunks[0].source.captured_ns < oldest_ns:
            dropped += self._chunks.popleft().left
        return dropped

    @property
    def epoch(self) -> int:
        """Number of clears; a row taken before a change is not to be executed."""
        return self._epoch

    @property
    def episodes_ended(self) -> int:
        """Number of clears at the end of an episode."""
        return self._episodes_ended

    @property
    def rows_taken(self) -> int:
        """Rows taken since start; the difference over a request is the executed rows."""
        return self._taken

    @property
    def rows_left(self) -> int:
        with self._lock:
            return self._left()

    def playable_s(self, now_ns: int, step_s: float, max_age_ns: int) -> float:
        """Return how long the queue lasts without stale actions [s]."""
        with self._lock:
            left = [(chunk.left, chunk.source.captured_ns) for chunk in self._chunks]
        end_s = 0.0
        for rows, captured_ns in left:
            fresh_s = (captured_ns + max_age_ns - now_ns) / 1e9
            end_s = max(end_s, min(end_s + rows * step_s, fresh_s))
        return end_s

    def mark(self) -> QueueMark:
        """Return a mark for a request to carry."""
        with self._lock:
            return QueueMark(self._epoch, self._taken)

    def leftover(self, limit: int) -> Leftover:
        """
        Return at most `limit` remaining rows as the prefix of a request, and its mark.

        A prefix starts with the next row and holds rows of one policy, that of the newest chunk:
        it ends before the first row of another, and is empty if that is the next row.
        """
        with self._lock:
            mark = QueueMark(self._epoch, self._taken)
            left = [(chunk, chunk.next) for chunk in self._chunks]
        kind = left[-1][0].kind if left else None
        same_kind = list(takewhile(lambda item: item[0].kind == kind, left))
        if not same_kind or limit <= 0:
            return Leftover(mark)
        model = np.concatenate([chunk.model[first:] for chunk, first in same_kind])
        robot = np.concatenate([chunk.robot[first:] for chunk, first in same_kind])
        source = same_kind[0][0].source
        return Leftover(mark, model[:limit], robot[:limit], source.policy, source)

    def replace(
        self,
        robot: FloatArray,
        source: ChunkSource,
        *,
        mark: QueueMark,
        delay_rows: int,
        model: Float32Array = NO_ACTIONS,
    ) -> int | None:
        """
        Replace the queue with the chunk; return the rows that the rule skipped, None if the chunk
        is refused because the queue was cleared after `mark`.

        `delay_rows` is the delay since `mark` by the clock. Raises ValueError for a model that
        does not fit.
        """
        chunk = _QueuedChunk(robot, model, source)
        with self._lock:
            if self._refuses(mark):
                return None
            taken_rows = self._taken - mark.rows_taken
            skipped = chunk.next = self.rule(delay_rows, taken_rows, len(robot))
            self._chunks = deque([chunk] if chunk.left else [])
        return skipped

    def append(
        self,
        robot: FloatArray,
        source: ChunkSource,
        *,
        mark: QueueMark,
        model: Float32Array = NO_ACTIONS,
    ) -> bool:
        """
        Append the chunk; return False if it is refused because the queue was cleared after
        `mark`. Raises ValueError for a model that does not fit.
        """
        chunk = _QueuedChunk(robot, model, source)
        with self._lock:
            if self._refuses(mark):
                return False
            if chunk.left:
                self._chunks.append(chunk)
        return True

    def clear(self, *, ends_episode: bool = True) -> int:
        """Clear the queue and refuse chunks requested before now; return the rows cleared."""
        with self._lock:
            left = self._left()
            self._chunks = deque()
            self._epoch += 1
            self._episodes_ended += ends_episode
            self.rows_cleared += left
        return left

    def _left(self) -> int:
        return sum(chunk.left for chunk in self._chunks)

    def _refuses(self, mark: QueueMark) -> bool:
        refused = mark.epoch != self._epoch
        self.chunks_refused += refused
        return refused


def read_only_copy(rows: NDArray[Element]) -> NDArray[Element]:
    """Return a read-only copy."""
    copy = np.array(rows)
    copy.flags.writeable = False
    return copy
