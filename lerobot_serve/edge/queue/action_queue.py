"""
The actions that are left to play, in the robot's units and beside them in the policy's.

A chunk replaces what is left, less the rows whose time has passed, or is appended to it. Nothing
is ever blended. A request takes a mark of the queue along, and its chunk brings it back: a chunk
from before the last `clear` is refused, so that no row of an ended episode is ever played.

The tick thread takes, the requester marks and merges, whoever ends an episode clears. None of them
waits for another's copying: a chunk is copied before the lock is taken, a prefix after.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
import threading

import numpy as np

from lerobot_serve.edge.queue.delay_rules import DelayRule, lived
from lerobot_serve.wire.message_parts import NO_ACTIONS


@dataclass(frozen=True, slots=True, eq=False)
class ChunkSource:
    """Where the rows of a chunk come from."""

    seq: int
    session_epoch: int
    episode: int
    episode_id: str
    captured_ns: int
    slot: str
    policy: str


@dataclass(frozen=True, slots=True, eq=False)
class QueuedAction:
    """One action to play; nobody can write to it."""

    action: np.ndarray
    source: ChunkSource
    row: int


@dataclass(frozen=True, slots=True)
class QueueMark:
    """A moment of the queue: how often it had been cleared, and the rows taken since start."""

    epoch: int
    rows_taken: int


@dataclass(frozen=True, slots=True, eq=False)
class Leftover:
    """
    Rows that were not taken by the moment of `mark`, next one first, in both units. `policy` and
    `source` are those of the first row; without rows, there are none.
    """

    mark: QueueMark
    model: np.ndarray = field(default_factory=lambda: NO_ACTIONS)
    robot: np.ndarray = field(default_factory=lambda: NO_ACTIONS)
    policy: str = ''
    source: ChunkSource | None = None


class _Stretch:
    """The rows of one chunk that are left, from `next` on; `model` may be without rows."""

    __slots__ = ('model', 'next', 'robot', 'source')

    def __init__(self, robot: np.ndarray, model: np.ndarray, source: ChunkSource) -> None:
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
        """What rows must have in common to stand in one prefix."""
        return self.source.policy, self.robot.shape[1], self.model.shape[1]


class ActionQueue:
    """See the module. `rule` may be changed between two chunks."""

    def __init__(self, rule: DelayRule = lived) -> None:
        self.rule = rule
        self.rows_cleared = 0
        self.chunks_refused = 0
        # none of these is ever without rows
        self._stretches: deque[_Stretch] = deque()
        self._epoch = 0
        self._taken = 0
        self._lock = threading.Lock()

    def take(self) -> QueuedAction | None:
        """Return the next action and advance; None when nothing is left."""
        return self.take_fresh(None)[0]

    def take_fresh(self, oldest_ns: int | None) -> tuple[QueuedAction | None, int]:
        """
        Return the next action whose observation was captured at `oldest_ns` or later, and how many
        older ones were dropped before it. Those count as never taken: the robot did not live them.
        """
        with self._lock:
            dropped = 0 if oldest_ns is None else self._drop_older(oldest_ns)
            if not self._stretches:
                return None, dropped
            stretch = self._stretches[0]
            row = stretch.next
            stretch.next += 1
            self._taken += 1
            if not stretch.left:
                self._stretches.popleft()
        return QueuedAction(stretch.robot[row], stretch.source, row), dropped

    def drop_older(self, oldest_ns: int) -> int:
        """
        Drop the next actions whose observation was captured before `oldest_ns`; return how many.
        """
        with self._lock:
            return self._drop_older(oldest_ns)

    def _drop_older(self, oldest_ns: int) -> int:
        dropped = 0
        while self._stretches and self._stretches[0].source.captured_ns < oldest_ns:
            dropped += self._stretches.popleft().left
        return dropped

    @property
    def epoch(self) -> int:
        """How often it was cleared; a row taken before that changed is of an ended episode."""
        return self._epoch

    @property
    def rows_taken(self) -> int:
        """Rows taken since start; its difference over a request is what the robot has lived."""
        return self._taken

    @property
    def rows_left(self) -> int:
        with self._lock:
            return self._left()

    def playable_s(self, now_ns: int, step_s: float, max_age_ns: int) -> float:
        """Return for how long there is something to play that does not grow too old meanwhile."""
        with self._lock:
            left = [(stretch.left, stretch.source.captured_ns) for stretch in self._stretches]
        end_s = 0.0
        for rows, captured_ns in left:
            fresh_s = (captured_ns + max_age_ns - now_ns) / 1e9
            end_s = max(end_s, min(end_s + rows * step_s, fresh_s))
        return end_s

    def mark(self) -> QueueMark:
        """Return this moment, for a request to take along."""
        with self._lock:
            return QueueMark(self._epoch, self._taken)

    def leftover(self, limit: int) -> Leftover:
        """
        Return what is left, at most `limit` rows, as the prefix of a request, and its mark.

        A prefix begins with the next row to play and is of one policy, the one of the newest
        chunk: it ends before the first row of another, and is empty where that is the next row.
        """
        with self._lock:
            mark = QueueMark(self._epoch, self._taken)
            left = [(stretch, stretch.next) for stretch in self._stretches]
        kind = left[-1][0].kind if left else None
        ours = list(takewhile(lambda item: item[0].kind == kind, left))
        if not ours or limit <= 0:
            return Leftover(mark)
        model = np.concatenate([stretch.model[first:] for stretch, first in ours])
        robot = np.concatenate([stretch.robot[first:] for stretch, first in ours])
        source = ours[0][0].source
        return Leftover(mark, model[:limit], robot[:limit], source.policy, source)

    def replace(
        self,
        robot: np.ndarray,
        source: ChunkSource,
        *,
        mark: QueueMark,
        delay_rows: int,
        model: np.ndarray = NO_ACTIONS,
    ) -> int | None:
        """
        Put the chunk in place of what is left; return the rows of it that the rule skipped, None
        when the chunk is refused because the queue was cleared after `mark`.

        `delay_rows` is the delay since `mark` by the clock. Raises ValueError for a model that
        does not fit.
        """
        stretch = _Stretch(robot, model, source)
        with self._lock:
            if self._refuses(mark):
                return None
            lived_rows = self._taken - mark.rows_taken
            skipped = stretch.next = self.rule(delay_rows, lived_rows, len(robot))
            self._stretches = deque([stretch] if stretch.left else [])
        return skipped

    def append(
        self,
        robot: np.ndarray,
        source: ChunkSource,
        *,
        mark: QueueMark,
        model: np.ndarray = NO_ACTIONS,
    ) -> bool:
        """
        Put the chunk behind what is left; return False when it is refused because the queue was
        cleared after `mark`. Raises ValueError for a model that does not fit.
        """
        stretch = _Stretch(robot, model, source)
        with self._lock:
            if self._refuses(mark):
                return False
            if stretch.left:
                self._stretches.append(stretch)
        return True

    def clear(self) -> int:
        """Forget what is left, and what was asked before now; return how many rows were left."""
        with self._lock:
            left = self._left()
            self._stretches = deque()
            self._epoch += 1
            self.rows_cleared += left
        return left

    def _left(self) -> int:
        return sum(stretch.left for stretch in self._stretches)

    def _refuses(self, mark: QueueMark) -> bool:
        refused = mark.epoch != self._epoch
        self.chunks_refused += refused
        return refused


def read_only_copy(rows: np.ndarray) -> np.ndarray:
    """Return a copy that nobody can write to."""
    copy = np.array(rows)
    copy.flags.writeable = False
    return copy
