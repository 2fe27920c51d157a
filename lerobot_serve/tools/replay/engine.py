"""
All of a recording asked again, and summed up by slot and policy. One thread.

Where the policy of now answered then, only its own answers are compared: a shadow's and those of
another slot are no matter of it. Where it did not, it is another one, and how far its actions are
from what was answered is summed up by action.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from lerobot_serve.tools.replay.compare import (
    compare_replies,
    divergence,
    lost_state,
    MatchLevel,
    ReplyComparison,
    TOLERANCE,
)
from lerobot_serve.tools.replay.in_process_server import InProcessServer
from lerobot_serve.tools.replay.sources import ReplayRequest, ReplaySource
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.schema import Flag, StateClass, Status

# these were not asked of a policy
NOT_FROM_POLICY = (Status.NO_SESSION, Status.TOO_LATE, Status.DRAINING)
# answers of now that are kept, for another policy's answer to the same request
REPLIES_KEPT = 256

ReplayKey = tuple[str, int, int]


@dataclass(slots=True)
class PolicySummary:
    """What came of the requests of one slot and policy."""

    slot: str
    policy: str
    counts: dict[MatchLevel, int] = field(default_factory=lambda: dict.fromkeys(MatchLevel, 0))
    worst: float = 0.0
    # the request of the worst one: client, session, number
    largest_at: ReplayKey | None = None
    # why something is missing or differs, in the words of the first
    why: str = ''
    # of another policy: for each action the sum and the largest of its distances
    total: np.ndarray | None = None
    largest: np.ndarray | None = None
    compared: int = 0

    @property
    def requests(self) -> int:
        return sum(self.counts.values())

    def add(self, key: ReplayKey, comparison: ReplyComparison) -> None:
        self.counts[comparison.likeness] += 1
        self.why = self.why or comparison.why
        if comparison.likeness is not MatchLevel.MISSING and comparison.difference > self.worst:
            self.worst, self.largest_at = comparison.difference, key

    def add_distances(self, distances: np.ndarray | None) -> None:
        if distances is None:
            return
        if self.total is None:
            self.total, self.largest = np.zeros_like(distances), np.zeros_like(distances)
        self.total += distances
        self.largest = np.maximum(self.largest, distances)
        self.compared += 1


@dataclass(slots=True)
class ReplayResult:
    """The whole of it; `others` are answers of other policies that were not compared."""

    policy: str
    is_other_policy: bool
    actions: tuple[str, ...]
    tolerance: float
    sums: dict[tuple[str, str], PolicySummary] = field(default_factory=dict)
    unanswered: int = 0
    not_asked: int = 0
    others: int = 0
    prefixes_ignored: int = 0
    notes: list[str] = field(default_factory=list)

    def count(self, likeness: MatchLevel) -> int:
        return sum(each.counts[likeness] for each in self.sums.values())

    @property
    def requests(self) -> int:
        return sum(each.requests for each in self.sums.values())


class Replay:
    """See the module."""

    def __init__(
        self, source: ReplaySource, replayer: InProcessServer, tolerance: float = TOLERANCE
    ) -> None:
        self._source, self._replayer = source, replayer
        served = replayer.served
        then = source.policies()
        is_other = bool(then) and served.fingerprint not in then
        self.result = ReplayResult(served.fingerprint, is_other, served.action_names, tolerance)
        self._now: OrderedDict[ReplayKey, Chunk] = OrderedDict()
        # sessions of recurrent policies in the episode whose hidden state is not known
        self._unknown: dict[tuple[str, int], int] = {}

    def run(
        self, shown: Callable[[Iterator[ReplayRequest]], Iterator[ReplayRequest]] = iter
    ) -> ReplayResult:
        """
        Ask for everything again; `shown` hands on what it is given, and may tell how far that is.
        Raises BagError, TraceError, ReplayError.
        """
        for recorded in shown(self._source.read()):
            try:
                self._ask(recorded, wire_chunk.decode(recorded.answer))
            except Malformed as error:
                self.result.notes.append(f'a request or an answer cannot be read: {error}')
        self.result.unanswered = self._source.unanswered
        self.result.notes += self._source.notes
        return self.result

    def _ask(self, recorded: ReplayRequest, then: Chunk) -> None:
        result = self.result
        if not result.is_other_policy and then.policy != result.policy:
            result.others += 1
            return
        if then.status in NOT_FROM_POLICY:
            result.not_asked += 1
            return
        key = then.client_id, then.header.session_epoch, then.header.seq
        now = self._answer(key, recorded, then)
        found = result.sums.setdefault(
            (then.slot, then.policy), PolicySummary(then.slot, then.policy)
        )
        found.add(key, self._compared(then, now))
        if result.is_other_policy:
            found.add_distances(divergence(then, now))

    def _answer(self, key: ReplayKey, recorded: ReplayRequest, then: Chunk) -> Chunk:
        """Return the answer of now, asked for once, whatever the number of those of then."""
        if key not in self._now:
            now = self._replayer.answer(recorded.request, recorded.info, forget=lost_state(then))
            self._now[key] = now
            self.result.prefixes_ignored += bool(now.header.flags & Flag.PREFIX_IGNORED) and not (
                then.header.flags & Flag.PREFIX_IGNORED
            )
            if len(self._now) > REPLIES_KEPT:
                self._now.popitem(last=False)
        return self._now[key]

    def _compared(self, then: Chunk, now: Chunk) -> ReplyComparison:
        """Compare; what follows on an unknown hidden state is as unknown."""
        comparison = compare_replies(then, now, self.result.tolerance)
        if self._replayer.served.state_class != StateClass.RECURRENT:
            return comparison
        session, episode = (then.client_id, then.header.session_epoch), then.header.episode
        if lost_state(now) and not lost_state(then):
            self._unknown[session] = episode
        elif self._unknown.get(session) == episode:
            return ReplyComparison(MatchLevel.MISSING, why='the hidden state is not known')
        return comparison
