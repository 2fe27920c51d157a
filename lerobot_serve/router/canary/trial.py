# SPDX-License-Identifier: Apache-2.0
"""
The episodes of one step of a canary, by the arm in which they began and by how they ended.

An episode counts where it begins, whatever becomes of it: one that moves to the other slot stays
an episode of its arm. The ends that are known: success, failure, aborted. An episode that is moved
or unreported has none, and one that runs or waits for its verdict has none yet. Each question
takes an unknown end at its worst, so that no way of losing a verdict helps its answer:

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

The order is that in which episodes begin. A block is closed when both arms have its number of
episodes, which depends on placements alone. Owned by the executor thread.
"""

from __future__ import annotations

from collections import deque, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from lerobot_serve.router.canary.evidence import FRACTIONS, Wager

ARMS = ('candidate', 'champion')
ENDS = ('success', 'failure', 'aborted', 'moved', 'unreported')
BEGUN = 'begun'
# what is remembered of blocks whose ends are not all known; older ones stay at their worst
BLOCKS_LIMIT, OPEN_LIMIT = 4000, 20_000
COUNT_LIMIT = 10**15


@dataclass(frozen=True, slots=True)
class EpisodeEvent:
    """An episode began in an arm, or ended; `what` is BEGUN or one of ENDS."""

    episode_id: str
    what: str
    arm: str


@dataclass(slots=True)
class ArmCounts:
    """Episodes that began in one arm, and how they ended."""

    begun: int = 0
    success: int = 0
    failure: int = 0
    aborted: int = 0
    moved: int = 0
    unreported: int = 0

    @property
    def open(self) -> int:
        """Episodes whose end may still be reported."""
        known = self.success + self.failure + self.aborted + self.moved + self.unreported
        return self.begun - known

    def note(self, what: str) -> None:
        setattr(self, what, getattr(self, what) + 1)


@dataclass(slots=True)
class EpisodeBlock:
    """Episodes of both arms that began one after the other."""

    candidate: ArmCounts = field(default_factory=ArmCounts)
    champion: ArmCounts = field(default_factory=ArmCounts)

    def arm(self, name: str) -> ArmCounts:
        return self.candidate if name == 'candidate' else self.champion

    @property
    def open(self) -> int:
        return self.candidate.open + self.champion.open


# the three questions; see the table above


def promotion_gain(block: EpisodeBlock) -> float:
    """Return by how much the candidate is better, at the least."""
    candidate, champion = block.candidate, block.champion
    worst = champion.begun - champion.failure - champion.aborted
    return candidate.success / candidate.begun - worst / champion.begun


def rollback_gain(block: EpisodeBlock) -> float:
    """Return by how much the champion is better, at the least."""
    candidate, champion = block.candidate, block.champion
    worst = candidate.begun - candidate.failure - candidate.aborted - candidate.moved
    return champion.success / champion.begun - worst / candidate.begun


def abort_gain(block: EpisodeBlock) -> float:
    """Return by how much the champion is aborted more often, at the least."""
    candidate, champion = block.candidate, block.champion
    worst = candidate.aborted + candidate.open
    return champion.aborted / champion.begun - worst / candidate.begun


GAINS: dict[str, Callable[[EpisodeBlock], float]] = {
    'promotion': promotion_gain,
    'rollback': rollback_gain,
    'aborted': abort_gain,
}


class BlockSeries:
    """Blocks of one size, and what is bet on them. `best` is the highest log e so far."""

    def __init__(self, size: int, margins: Mapping[str, float]) -> None:
        self._size = size
        self.wagers = {name: Wager(margin) for name, margin in margins.items()}
        self.best = dict.fromkeys(margins, 0.0)
        # the number of the first block that is not settled, and those from it on; the last fills
        self._first = 0
        self._blocks: deque[EpisodeBlock] = deque([EpisodeBlock()])
        # closed blocks from which on nothing was weighed yet
        self._is_new = False

    def begin(self, arm: str) -> int:
        """Take an episode that begins; return the number of its block."""
        block = self._blocks[-1]
        block.arm(arm).note(BEGUN)
        number = self._first + len(self._blocks) - 1
        if min(block.candidate.begun, block.champion.begun) >= self._size:
            self._blocks.append(EpisodeBlock())
            self._is_new = True
        return number

    def end(self, number: int, arm: str, what: str) -> None:
        """Note how an episode of a block ended; nothing when the block is settled."""
        if number >= self._first:
            self._blocks[number - self._first].arm(arm).note(what)
            self._is_new = True

    def weigh(self) -> None:
        """Bring `best` up to date."""
        if not self._is_new:
            return
        self._is_new = False
        while len(self._blocks) > 1 and self._may_settle:
            block = self._blocks.popleft()
            self._first += 1
            for name, wager in self.wagers.items():
                self.best[name] = max(self.best[name], wager.settle(GAINS[name](block)))
        for name, wager in self.wagers.items():
            closed = (self._blocks[i] for i in range(len(self._blocks) - 1))
            self.best[name] = max(self.best[name], wager.highest(map(GAINS[name], closed)))

    @property
    def _may_settle(self) -> bool:
        return self._blocks[0].open == 0 or len(self._blocks) > BLOCKS_LIMIT

    def memory(self) -> dict[str, Any]:
        """Return what `restore` takes."""
        return {
            'first': self._first,
            'blocks': [[*astuple(b.candidate), *astuple(b.champion)] for b in self._blocks],
            'wealth': {name: list(wager.wealth) for name, wager in self.wagers.items()},
            'best': dict(self.best),
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Go on from what `memory` returned. Raises ValueError, KeyError or TypeError."""
        blocks = [_block(values) for values in memory['blocks']]
        if not 0 < len(blocks) <= BLOCKS_LIMIT + 2:
            raise ValueError(f'{len(blocks)} blocks')
        for name, wager in self.wagers.items():
            wealth = [_float(value) for value in memory['wealth'][name]]
            if len(wealth) != len(FRACTIONS):
                raise ValueError(f'wealth is {wealth!r}')
            wager.wealth = wealth
            self.best[name] = _float(memory['best'][name])
        if any(min(b.candidate.begun, b.champion.begun) < self._size for b in blocks[:-1]):
            raise ValueError('a block is closed with too few episodes')
        self._first, self._blocks = checked_count(memory['first'], 'first'), deque(blocks)
        self._is_new = True

    @property
    def last(self) -> int:
        """The number of the block that fills."""
        return self._first + len(self._blocks) - 1


class StepTrial:
    """
    The episodes of a step. `size` is the block of the promotion test; rollback and aborts are
    tested with blocks of one, which find a bad candidate soonest.
    """

    def __init__(self, margin: float, size: int) -> None:
        self.totals = {arm: ArmCounts() for arm in ARMS}
        self.wide = BlockSeries(size, {'promotion': margin})
        self.narrow = BlockSeries(1, {'rollback': 0.0, 'aborted': 0.0})
        # id -> arm, number of its block in each series
        self._open: OrderedDict[str, tuple[str, int, int]] = OrderedDict()

    def take(self, events: Sequence[EpisodeEvent]) -> None:
        """Note what happened, in this order. Only episodes that began in this step count."""
        for event in events:
            if event.what == BEGUN:
                self._begin(event.episode_id, event.arm)
            else:
                self._end(event.episode_id, event.what)
        self.wide.weigh()
        self.narrow.weigh()

    def _begin(self, episode_id: str, arm: str) -> None:
        if episode_id in self._open:
            return
        self.totals[arm].note(BEGUN)
        self._open[episode_id] = arm, self.wide.begin(arm), self.narrow.begin(arm)
        if len(self._open) > OPEN_LIMIT:
            self._end(next(iter(self._open)), 'unreported')

    def _end(self, episode_id: str, what: str) -> None:
        arm, wide, narrow = self._open.pop(episode_id, ('', 0, 0))
        if arm:
            self.totals[arm].note(what)
            self.wide.end(wide, arm, what)
            self.narrow.end(narrow, arm, what)

    @property
    def evidence(self) -> tuple[float, float, float]:
        """The highest log e: for promotion, for rollback, that the champion is aborted more."""
        return (
            self.wide.best['promotion'],
            self.narrow.best['rollback'],
            self.narrow.best['aborted'],
        )

    @property
    def open(self) -> dict[str, str]:
        """Episodes whose end may still be reported, with their arm."""
        return {episode_id: place[0] for episode_id, place in self._open.items()}

    def memory(self) -> dict[str, Any]:
        """Return what `restore` takes; plain data."""
        return {
            'totals': {arm: list(astuple(total)) for arm, total in self.totals.items()},
            'wide': self.wide.memory(),
            'narrow': self.narrow.memory(),
            'open': [[episode_id, *place] for episode_id, place in self._open.items()],
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Go on from what `memory` returned. Raises ValueError, KeyError or TypeError."""
        self.totals = {arm: _arm(memory['totals'][arm]) for arm in ARMS}
        self.wide.restore(memory['wide'])
        self.narrow.restore(memory['narrow'])
        for episode_id, arm, wide, narrow in memory['open']:
            inside = (
                checked_count(wide, 'block') <= self.wide.last
                and checked_count(narrow, 'block') <= self.narrow.last
            )
            if type(episode_id) is not str or arm not in ARMS or not inside:
                raise ValueError(f'open episode {episode_id!r} of {arm!r}: {wide!r}, {narrow!r}')
            self._open[episode_id] = arm, wide, narrow


def checked_count(value: Any, name: str) -> int:
    """Return a count. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= COUNT_LIMIT:
        raise ValueError(f'{name} is {value!r}')
    return value


def _arm(values: Sequence[Any]) -> ArmCounts:
    names = [entry.name for entry in fields(ArmCounts)]
    arm = ArmCounts(
        *(checked_count(value, name) for name, value in zip(names, values, strict=True))
    )
    if arm.open < 0:
        raise ValueError(f'more ends than episodes: {values!r}')
    return arm


def _block(values: Sequence[Any]) -> EpisodeBlock:
    half = len(fields(ArmCounts))
    return EpisodeBlock(_arm(values[:half]), _arm(values[half:]))


def _float(value: Any) -> float:
    if type(value) is not float or not abs(value) < 1e9:
        raise ValueError(f'{value!r} is no log e')
    return value
