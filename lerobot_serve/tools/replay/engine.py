# SPDX-License-Identifier: Apache-2.0
"""
Replay a recording, compare each recorded and replayed reply, and summarize by slot and policy. One
thread.

If the recording has replies of the replayed policy, only those are compared, not those of a shadow
or another slot. Otherwise the replayed policy is another one, and the distance to the recorded
actions is summarized by action.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf

import numpy as np

from lerobot_serve.arrays import Float32Array, Float64Array
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.schema import Flag, StateClass, Status
from lerobot_serve.tools.replay.in_process_server import InProcessServer
from lerobot_serve.tools.replay.sources import ReplayRequest, ReplaySource

# exceeds the effect of another order of float32 sums: docs/bags.md
TOLERANCE = 1e-4


class MatchLevel(Enum):
    """Result of a comparison, from best to worst."""

    IDENTICAL = 'identical'
    WITHIN = 'within'
    BEYOND = 'beyond'
    # not comparable: one of the replies has no actions, or its hidden state is unknown
    MISSING = 'missing'


@dataclass(frozen=True, slots=True)
class ReplyComparison:
    """
    Result for one reply. `difference` is the largest difference of two values, relative for values
    above 1; `why` is the reason if the values are not comparable.
    """

    level: MatchLevel
    difference: float = 0.0
    why: str = ''


def compare_replies(
    recorded: Chunk, replayed: Chunk, tolerance: float = TOLERANCE
) -> ReplyComparison:
    """Compare two replies."""
    if recorded.status != replayed.status:
        why = f'{status_name(recorded.status)} recorded, {status_name(replayed.status)} replayed: '
        why += recorded.status_text or replayed.status_text
        is_missing = recorded.status == Status.OK
        return ReplyComparison(MatchLevel.MISSING if is_missing else MatchLevel.BEYOND, inf, why)
    if lost_state(replayed) and not lost_state(recorded):
        why = 'the recording begins within the episode: the hidden state is unknown'
        return ReplyComparison(MatchLevel.MISSING, inf, why)
    pairs = ((recorded.robot, replayed.robot), (recorded.model, replayed.model))
    if any(a.shape != b.shape for a, b in pairs):
        return ReplyComparison(
            MatchLevel.BEYOND,
            inf,
            f'{recorded.robot.shape} actions recorded, {replayed.robot.shape} replayed',
        )
    if all(a.tobytes() == b.tobytes() for a, b in pairs):
        return ReplyComparison(MatchLevel.IDENTICAL)
    difference = max(largest_difference(a, b) for a, b in pairs)
    is_within = difference <= tolerance
    return ReplyComparison(MatchLevel.WITHIN if is_within else MatchLevel.BEYOND, difference)


def largest_difference(recorded: Float32Array, replayed: Float32Array) -> float:
    """Return the largest difference, relative for recorded values above 1."""
    if not recorded.size:
        return 0.0
    before = recorded.astype(np.float64)
    # the difference of values that are not finite is infinite
    with np.errstate(all='ignore'):
        differences = np.abs(before - replayed) / np.maximum(1.0, np.abs(before))
    largest = float(differences.max())
    return largest if np.isfinite(largest) else inf


def divergence(recorded: Chunk, replayed: Chunk) -> Float64Array | None:
    """
    Return the mean distance of each action over the common rows, in the robot's units; None
    without common rows.
    """
    rows = min(len(recorded.robot), len(replayed.robot))
    if not rows or recorded.robot.shape[1] != replayed.robot.shape[1]:
        return None
    distances = np.abs(recorded.robot[:rows].astype(np.float64) - replayed.robot[:rows])
    means: Float64Array = distances.mean(axis=0)
    return means


def lost_state(chunk: Chunk) -> bool:
    return bool(chunk.header.flags & Flag.STATE_LOST)


def status_name(status: int) -> str:
    """Return the name of a status, also of an unknown one."""
    return Status(status).word


# replies without inference
NOT_FROM_POLICY = (
    Status.NO_SESSION,
    Status.TOO_LATE,
    Status.DRAINING,
    Status.NO_SLOT,
    Status.QUOTA,
)
# number of replayed replies kept, since several policies may have replied to one request
REPLIES_KEPT = 256

ReplayKey = tuple[str, int, int]


@dataclass(slots=True)
class ActionDistances:
    """Sum and maximum of the distances of each action over `count` chunks."""

    total: Float64Array
    largest: Float64Array
    count: int = 0

    def add(self, distances: Float64Array) -> None:
        self.total += distances
        self.largest = np.maximum(self.largest, distances)
        self.count += 1

    def figures(self, actions: Sequence[str]) -> list[tuple[str, float, float]]:
        """Return name, mean and maximum of each action; empty if the action counts differ."""
        if len(actions) != len(self.total):
            return []
        means, largest = (self.total / self.count).tolist(), self.largest.tolist()
        return list(zip(actions, means, largest, strict=True))


@dataclass(slots=True)
class PolicySummary:
    """Comparison of the requests of one slot and policy."""

    slot: str
    policy: str
    counts: dict[MatchLevel, int] = field(default_factory=lambda: dict.fromkeys(MatchLevel, 0))
    worst: float = 0.0
    # the request with the largest difference: client, session, number
    largest_at: ReplayKey | None = None
    # reason of the first one missing or different
    why: str = ''
    # distances to the actions of another policy
    distances: ActionDistances | None = None

    @property
    def requests(self) -> int:
        return sum(self.counts.values())

    def add(self, key: ReplayKey, comparison: ReplyComparison) -> None:
        self.counts[comparison.level] += 1
        self.why = self.why or comparison.why
        if comparison.level is not MatchLevel.MISSING and comparison.difference > self.worst:
            self.worst, self.largest_at = comparison.difference, key

    def add_distances(self, distances: Float64Array | None) -> None:
        if distances is None:
            return
        if self.distances is None:
            self.distances = ActionDistances(np.zeros_like(distances), np.zeros_like(distances))
        self.distances.add(distances)


@dataclass(slots=True)
class ReplayResult:
    """Result of a replay; `others` counts replies of other policies, not compared."""

    policy: str
    is_other_policy: bool
    actions: tuple[str, ...]
    tolerance: float
    summaries: dict[tuple[str, str], PolicySummary] = field(default_factory=dict)
    without_reply: int = 0
    without_inference: int = 0
    others: int = 0
    prefixes_ignored: int = 0
    notes: list[str] = field(default_factory=list)

    def count(self, level: MatchLevel) -> int:
        return sum(each.counts[level] for each in self.summaries.values())

    @property
    def requests(self) -> int:
        return sum(each.requests for each in self.summaries.values())


class Replay:
    """See the module."""

    def __init__(
        self, source: ReplaySource, replayer: InProcessServer, tolerance: float = TOLERANCE
    ) -> None:
        self._source, self._replayer = source, replayer
        served = replayer.served
        recorded = source.policies()
        is_other = bool(recorded) and served.fingerprint not in recorded
        self.result = ReplayResult(served.fingerprint, is_other, served.action_names, tolerance)
        self._replies: OrderedDict[ReplayKey, Chunk] = OrderedDict()
        # session of a recurrent policy -> episode with unknown hidden state
        self._unknown: dict[tuple[str, int], int] = {}

    def run(
        self, on_progress: Callable[[Iterator[ReplayRequest]], Iterator[ReplayRequest]] = iter
    ) -> ReplayResult:
        """
        Replay all requests; `on_progress` yields them unchanged and may show progress. Raises
        BagError, TraceError, ReplayError.
        """
        for request in on_progress(self._source.read()):
            try:
                self._replay_request(request, wire_chunk.decode(request.reply))
            except Malformed as error:
                self.result.notes.append(f'a request or a reply cannot be read: {error}')
        self.result.without_reply = self._source.without_reply
        self.result.notes += self._source.notes
        return self.result

    def _replay_request(self, request: ReplayRequest, recorded: Chunk) -> None:
        result = self.result
        if not result.is_other_policy and recorded.policy != result.policy:
            result.others += 1
            return
        if recorded.status in NOT_FROM_POLICY:
            result.without_inference += 1
            return
        key = recorded.client_id, recorded.header.session_epoch, recorded.header.seq
        replayed = self._reply_to(key, request, recorded)
        found = result.summaries.setdefault(
            (recorded.slot, recorded.policy), PolicySummary(recorded.slot, recorded.policy)
        )
        found.add(key, self._compared(recorded, replayed))
        if result.is_other_policy:
            found.add_distances(divergence(recorded, replayed))

    def _reply_to(self, key: ReplayKey, request: ReplayRequest, recorded: Chunk) -> Chunk:
        """Return the replayed reply; each request is replayed once."""
        if key not in self._replies:
            replayed = self._replayer.reply_to(
                request.request, request.info, state_lost=lost_state(recorded)
            )
            self._replies[key] = replayed
            self.result.prefixes_ignored += bool(
                replayed.header.flags & Flag.PREFIX_IGNORED
            ) and not (recorded.header.flags & Flag.PREFIX_IGNORED)
            if len(self._replies) > REPLIES_KEPT:
                self._replies.popitem(last=False)
        return self._replies[key]

    def _compared(self, recorded: Chunk, replayed: Chunk) -> ReplyComparison:
        """Compare two replies; an unknown hidden state stays unknown for the whole episode."""
        comparison = compare_replies(recorded, replayed, self.result.tolerance)
        if self._replayer.served.state_class != StateClass.RECURRENT:
            return comparison
        session, episode = (
            (recorded.client_id, recorded.header.session_epoch),
            recorded.header.episode,
        )
        if lost_state(replayed) and not lost_state(recorded):
            self._unknown[session] = episode
        elif self._unknown.get(session) == episode:
            return ReplyComparison(MatchLevel.MISSING, why='the hidden state is unknown')
        return comparison
