# SPDX-License-Identifier: Apache-2.0
"""
The episodes of one step of a canary, by the arm in which they began and by their end.

An episode counts in the arm in which it begins, also after a move to the other slot. Known ends
are success, failure and aborted. A moved or unreported episode has no outcome; a running one, or
one without a report, is open. Each test counts an unknown end at its worst, so that a missing
outcome never favors the result of the test:

                 success  failure  aborted  moved  unreported  open
    promotion
      candidate  1        0        0        0      0           0
      champion   1        0        0        1      1           1
    rollback
      candidate  1        0        0        0      1           1
      champion   1        0        0        0      0           0
    aborted more often
      candidate  0        0        1        0      0           1
      champion   0        0        1        0      0           0

Episodes are ordered by their begin. A block is complete when both arms have reached its size; this
depends on placements only. Owned by the executor thread.
"""

from __future__ import annotations

from collections import deque, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct, UNSET, UnsetType

from lerobot_serve.router.canary.evidence.failure_runs import (
    common_factor,
    FailureRuns,
    StoredRuns,
)
from lerobot_serve.router.canary.evidence.sequential_test import FRACTIONS, Wager
from lerobot_serve.router.canary.facts import (
    arm_values,
    ArmCounts,
    ArmName,
    ARMS,
    BEGUN,
    Count,
    EpisodeEvent,
    OfArms,
    stored_counts,
    StoredArm,
)

# limits of blocks with open episodes and of open episodes; older ones are settled at their worst
BLOCKS_LIMIT, OPEN_LIMIT = 4000, 20_000
LogE = Annotated[float, Meta(ge=-1e9, le=1e9)]
Wealth = Annotated[list[LogE], Meta(min_length=len(FRACTIONS), max_length=len(FRACTIONS))]
# of both arms, one after the other
StoredBlock = Annotated[tuple[Count, ...], Meta(min_length=12, max_length=12)]


class StoredSeries(Struct, frozen=True):
    """The state of BlockSeries; wealth and best are by test."""

    first: Count
    blocks: Annotated[list[StoredBlock], Meta(min_length=1, max_length=BLOCKS_LIMIT + 2)]
    wealth: dict[str, Wealth]
    best: dict[str, LogE]


class StoredTrial(Struct, frozen=True):
    """The state of StepTrial."""

    totals: OfArms[StoredArm]
    wide: StoredSeries
    narrow: StoredSeries
    # episode, arm, numbers of its blocks
    open: list[tuple[str, ArmName, Count, Count]]
    # an older state has none
    runs: OfArms[StoredRuns] | UnsetType = UNSET


@dataclass(slots=True)
class EpisodeBlock:
    """Consecutive episodes of both arms."""

    candidate: ArmCounts = field(default_factory=ArmCounts)
    champion: ArmCounts = field(default_factory=ArmCounts)

    def arm(self, name: str) -> ArmCounts:
        return self.candidate if name == 'candidate' else self.champion

    @property
    def open(self) -> int:
        return self.candidate.open + self.champion.open


# the three tests; see the table above


def promotion_gain(block: EpisodeBlock) -> float:
    """Return the smallest possible gain of the candidate over the champion."""
    candidate, champion = block.candidate, block.champion
    worst = champion.begun - champion.failure - champion.aborted
    return candidate.success / candidate.begun - worst / champion.begun


def rollback_gain(block: EpisodeBlock) -> float:
    """Return the smallest possible gain of the champion over the candidate."""
    candidate, champion = block.candidate, block.champion
    worst = candidate.begun - candidate.failure - candidate.aborted - candidate.moved
    return champion.success / champion.begun - worst / candidate.begun


def abort_gain(block: EpisodeBlock) -> float:
    """Return the smallest possible excess of the champion's abort rate."""
    candidate, champion = block.candidate, block.champion
    worst = candidate.aborted + candidate.open
    return champion.aborted / champion.begun - worst / candidate.begun


GAINS: dict[str, Callable[[EpisodeBlock], float]] = {
    'promotion': promotion_gain,
    'rollback': rollback_gain,
    'aborted': abort_gain,
}


class BlockSeries:
    """Blocks of one size and their wagers. `best` is the largest log e so far."""

    def __init__(self, size: int, margins: Mapping[str, float]) -> None:
        self._size = size
        self.wagers = {name: Wager(margin) for name, margin in margins.items()}
        self.best = dict.fromkeys(margins, 0.0)
        # number of the first unsettled block, and all unsettled blocks; the last is incomplete
        self._first = 0
        self._blocks: deque[EpisodeBlock] = deque([EpisodeBlock()])
        # whether a block has changed since the last `update_best`
        self._has_changed = False

    def begin(self, arm: str) -> int:
        """Count an episode that begins; return the number of its block."""
        block = self._blocks[-1]
        block.arm(arm).count(BEGUN)
        number = self._first + len(self._blocks) - 1
        if min(block.candidate.begun, block.champion.begun) >= self._size:
            self._blocks.append(EpisodeBlock())
            self._has_changed = True
        return number

    def end(self, number: int, arm: str, what: str) -> None:
        """Count the end of an episode, unless its block is settled."""
        if number >= self._first:
            self._blocks[number - self._first].arm(arm).count(what)
            self._has_changed = True

    def update_best(self) -> None:
        """Settle complete blocks and update `best`."""
        if not self._has_changed:
            return
        self._has_changed = False
        while len(self._blocks) > 1 and self._may_settle:
            block = self._blocks.popleft()
            self._first += 1
            for name, wager in self.wagers.items():
                self.best[name] = max(self.best[name], wager.settle(GAINS[name](block)))
        for name, wager in self.wagers.items():
            closed = islice(self._blocks, len(self._blocks) - 1)
            self.best[name] = wager.highest(map(GAINS[name], closed), self.best[name])

    @property
    def _may_settle(self) -> bool:
        return self._blocks[0].open == 0 or len(self._blocks) > BLOCKS_LIMIT

    def stored(self) -> StoredSeries:
        """Return the state for `restore`."""
        return StoredSeries(
            self._first,
            [arm_values(block.candidate) + arm_values(block.champion) for block in self._blocks],
            {name: wager.wealth for name, wager in self.wagers.items()},
            self.best,
        )

    def restore(self, stored: StoredSeries) -> None:
        """Restore a stored state. Raises ValueError and KeyError."""
        blocks = [
            EpisodeBlock(stored_counts(values[:6]), stored_counts(values[6:]))
            for values in stored.blocks
        ]
        if any(min(b.candidate.begun, b.champion.begun) < self._size for b in blocks[:-1]):
            raise ValueError('a block is closed with too few episodes')
        for name, wager in self.wagers.items():
            wager.wealth, self.best[name] = stored.wealth[name], stored.best[name]
        self._first, self._blocks = stored.first, deque(blocks)
        self._has_changed = True

    @property
    def last(self) -> int:
        """The number of the incomplete block."""
        return self._first + len(self._blocks) - 1


class StepTrial:
    """
    The episodes of a step. `size` is the block size of the promotion test; the tests of rollback
    and aborts use blocks of one, which detect a bad candidate earliest.
    """

    def __init__(self, margin: float, size: int) -> None:
        self.totals = {arm: ArmCounts() for arm in ARMS}
        self.wide = BlockSeries(size, {'promotion': margin})
        self.narrow = BlockSeries(1, {'rollback': 0.0, 'aborted': 0.0})
        self.runs = {arm: FailureRuns() for arm in ARMS}
        self._size = size
        # episode -> arm, numbers of its blocks in `wide` and `narrow`
        self._open: OrderedDict[str, tuple[str, int, int]] = OrderedDict()

    def take(self, events: Sequence[EpisodeEvent]) -> None:
        """Add events in order. Only episodes that begin in this step count."""
        for event in events:
            if event.what == BEGUN:
                self._begin(event)
            else:
                self._end(event.episode_id, event.what)
        self.wide.update_best()
        self.narrow.update_best()

    def _begin(self, event: EpisodeEvent) -> None:
        episode_id, arm = event.episode_id, event.arm
        if episode_id in self._open:
            return
        self.totals[arm].count(BEGUN)
        self.runs[arm].begin(episode_id, event.robot)
        self._open[episode_id] = arm, self.wide.begin(arm), self.narrow.begin(arm)
        if len(self._open) > OPEN_LIMIT:
            self._end(next(iter(self._open)), 'unreported')

    def _end(self, episode_id: str, what: str) -> None:
        arm, wide, narrow = self._open.pop(episode_id, ('', 0, 0))
        if arm:
            self.totals[arm].count(what)
            self.runs[arm].end(episode_id, what)
            self.wide.end(wide, arm, what)
            self.narrow.end(narrow, arm, what)

    @property
    def evidence(self) -> tuple[float, float, float]:
        """
        The log evidence for promotion, for rollback and for more aborts of the champion; for the
        first two divided by the factor of runs.
        """
        return (
            self.wide.best['promotion'] / self.promotion_factor,
            self.narrow.best['rollback'] / self.rollback_factor,
            self.narrow.best['aborted'],
        )

    @property
    def promotion_factor(self) -> float:
        """By how much runs of failures of one robot divide the evidence for promotion."""
        return common_factor(**self.runs, assumed_run=self._size)

    @property
    def rollback_factor(self) -> float:
        """The same for a rollback, which assumes no runs that were not seen."""
        return common_factor(**self.runs, assumed_run=1)

    @property
    def open(self) -> dict[str, str]:
        """Open episodes with their arm."""
        return {episode_id: place[0] for episode_id, place in self._open.items()}

    def stored(self) -> StoredTrial:
        """Return the state for `restore`."""
        return StoredTrial(
            {arm: arm_values(total) for arm, total in self.totals.items()},
            self.wide.stored(),
            self.narrow.stored(),
            [(episode_id, *place) for episode_id, place in self._open.items()],
            {arm: runs.stored() for arm, runs in self.runs.items()},
        )

    def restore(self, stored: StoredTrial) -> None:
        """Restore a stored state. Raises ValueError and KeyError."""
        self.totals = {arm: stored_counts(stored.totals[arm]) for arm in ARMS}
        self.wide.restore(stored.wide)
        self.narrow.restore(stored.narrow)
        if isinstance(stored.runs, dict):
            for arm, runs in stored.runs.items():
                self.runs[arm].restore(runs)
        for episode_id, arm, wide, narrow in stored.open:
            if wide > self.wide.last or narrow > self.narrow.last:
                raise ValueError(f'open episode {episode_id!r} of a block to come')
            self._open[episode_id] = arm, wide, narrow
