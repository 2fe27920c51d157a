# SPDX-License-Identifier: Apache-2.0
"""
Join the parts of one request: the request, the live chunk, the shadow's chunk, a second draw, and
the executed rows.

They may arrive in any order, twice or not at all. A sample is complete when its executed rows can
no longer grow, because the robot plays a later chunk or because of its age, and the shadow has
replied. One that cannot be completed is dropped and counted. At most `capacity` requests and
`values_limit` numbers are kept: the oldest are dropped. Owned by the thread `shadow`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.wire.execution_report import ExecutedRun
from lerobot_serve.wire.header import Envelope

# of one chunk; more are not looked at
EXECUTED_LIMIT = 4096
NO_ROWS = np.zeros((0, 0), np.float32)


class RequestKey(NamedTuple):
    """One request of one robot."""

    client_id: str
    session_epoch: int
    seq: int

    @classmethod
    def of(cls, start: Envelope) -> RequestKey:
        """Return the key of a request or of a chunk that answers it."""
        return cls(start.client_id, start.header.session_epoch, start.header.seq)

    def is_before(self, other: RequestKey) -> bool:
        """Return whether it is earlier than another of the same client; epochs wrap around."""
        later = (other.session_epoch - self.session_epoch) % 2**32
        return self.seq < other.seq if later == 0 else later < 2**31


@dataclass(frozen=True, slots=True, eq=False)
class ChunkDraw:
    """Rows of a chunk in the robot's units, the policy they are of, and when they came."""

    rows: Float32Array
    policy: str
    seed: int
    arrived_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class JoinedSample:
    """
    One request with both chunks. `commanded` are the rows executed, by their number in the chunk;
    `before` are the rows commanded right before the first of them, as far as known, and at the
    numbers in `begins` something else was commanded in between.
    """

    key: RequestKey
    requested_ns: int
    episode_id: str
    live: ChunkDraw
    shadow: ChunkDraw
    second: ChunkDraw | None
    commanded: dict[int, Float32Array]
    before: Float32Array
    begins: set[int]


@dataclass(slots=True, eq=False)
class PartialSample:
    """What is known of one request; see JoinedSample."""

    key: RequestKey
    began_ns: int
    requested_ns: int | None = None
    episode_id: str = ''
    live: ChunkDraw | None = None
    shadow: ChunkDraw | None = None
    second: ChunkDraw | None = None
    commanded: dict[int, Float32Array] = field(default_factory=dict)
    before: Float32Array = field(default_factory=lambda: NO_ROWS)
    begins: set[int] = field(default_factory=set)
    # no more of its rows will be executed
    is_over: bool = False
    # numbers that are kept
    size: int = 0

    @property
    def missing(self) -> str:
        """Why it cannot be compared, in a word; empty when it can."""
        if self.requested_ns is None:
            return 'shadow_stray'
        if self.shadow is None:
            return 'shadow_unanswered'
        if not self.commanded:
            return 'shadow_unmatched'
        return '' if self.live else 'shadow_without_live'

    def join(self) -> JoinedSample | None:
        """Return the whole sample; None while something is missing."""
        if self.requested_ns is None or not (self.live and self.shadow and self.commanded):
            return None
        return JoinedSample(
            self.key,
            self.requested_ns,
            self.episode_id,
            live=self.live,
            shadow=self.shadow,
            second=self.second,
            commanded=self.commanded,
            before=self.before,
            begins=self.begins,
        )


class SampleJoiner:
    """See the module. `drops` counts by reason."""

    def __init__(self, *, capacity: int, values_limit: int, age_limit_ns: int) -> None:
        self._capacity, self._values_limit = capacity, values_limit
        self._age_limit_ns = age_limit_ns
        self._samples: OrderedDict[RequestKey, PartialSample] = OrderedDict()
        self._of_client: dict[str, set[RequestKey]] = {}
        # what is over with: the same again is no news
        self._finished: OrderedDict[RequestKey, None] = OrderedDict()
        self._whole: list[JoinedSample] = []
        self._size = self._whole_size = 0
        self.drops: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def size(self) -> int:
        """How much is kept, for reports and tests."""
        values = self._size + self._whole_size
        return values + len(self._samples) + len(self._finished) + len(self._whole)

    def request(self, key: RequestKey, episode_id: str, now_ns: int) -> None:
        """Add the request to the shadow."""
        sample = self._sample(key, now_ns)
        if sample and sample.requested_ns is None:
            sample.requested_ns, sample.episode_id = now_ns, episode_id
            self._finish_if_complete(sample)

    def live(self, key: RequestKey, draw: ChunkDraw) -> None:
        """Add the live chunk."""
        sample = self._sample(key, draw.arrived_ns)
        if sample and sample.live is None:
            sample.live = self._kept(sample, draw)
            self._finish_if_complete(sample)

    def shadow(self, key: RequestKey, draw: ChunkDraw) -> None:
        """Add the chunk of the shadow."""
        sample = self._sample(key, draw.arrived_ns)
        if sample and sample.shadow is None:
            sample.shadow = self._kept(sample, draw)
            self._finish_if_complete(sample)

    def second(self, key: RequestKey, draw: ChunkDraw) -> None:
        """Add the second draw of the live policy."""
        sample = self._samples.get(key)
        if sample is None:
            self.drops['second_draw_late'] += 1
        elif sample.second is None:
            sample.second = self._kept(sample, draw)
            self._finish_if_complete(sample)

    def drop(self, key: RequestKey, reason: str, now_ns: int) -> None:
        """Drop a sample that cannot be completed."""
        sample = self._sample(key, now_ns)
        if sample:
            self._drop(sample, reason)

    def executed(self, client_id: str, run: ExecutedRun, before: Float32Array) -> None:
        """Add executed rows; earlier chunks of the client are then over."""
        key = RequestKey(client_id, run.session_epoch, run.seq)
        sample = self._samples.get(key)
        if sample:
            self._add_rows(sample, run, before)
        earlier = [each for each in self._of_client.get(client_id, ()) if each.is_before(key)]
        for each in earlier:
            self._samples[each].is_over = True
            self._finish_if_complete(self._samples[each])

    def take(self, now_ns: int) -> list[JoinedSample]:
        """Return the samples completed since the last call, and end those that are too old."""
        while self._samples:
            sample = next(iter(self._samples.values()))
            if now_ns - sample.began_ns < self._age_limit_ns:
                break
            self._end(sample)
        whole, self._whole, self._whole_size = self._whole, [], 0
        return whole

    def _sample(self, key: RequestKey, now_ns: int) -> PartialSample | None:
        """Return what is known of a request; None for one that is over with."""
        sample = self._samples.get(key)
        if sample is None and key not in self._finished:
            sample = self._samples[key] = PartialSample(key, now_ns)
            self._of_client.setdefault(key.client_id, set()).add(key)
            self._make_room()
        return sample

    def _kept(self, sample: PartialSample, draw: ChunkDraw) -> ChunkDraw:
        """Return a copy: what was given is a view of a whole message."""
        rows = np.array(draw.rows, np.float32)
        self._grow(sample, rows.size)
        return ChunkDraw(rows, draw.policy, draw.seed, draw.arrived_ns)

    def _add_rows(self, sample: PartialSample, run: ExecutedRun, before: Float32Array) -> None:
        known = sample.commanded
        columns = len(next(iter(known.values()))) if known else run.rows.shape[1]
        if run.rows.shape[1] != columns or len(known) + len(run.rows) > EXECUTED_LIMIT:
            self.drops['shadow_rows'] += 1
            return
        if not known:
            sample.before = before
        if not len(before):
            sample.begins.add(run.first_row)
        rows = run.rows.copy()
        for number, row in enumerate(rows, run.first_row):
            known.setdefault(number, row)
        self._grow(sample, rows.size)

    def _grow(self, sample: PartialSample, values: int) -> None:
        sample.size += values
        self._size += values
        self._make_room()

    def _make_room(self) -> None:
        while len(self._samples) > self._capacity or self._size > self._values_limit:
            self._drop(next(iter(self._samples.values())), 'shadow_overflow')

    def _finish_if_complete(self, sample: PartialSample) -> None:
        """End what is over and missing nothing that may still come."""
        if not sample.is_over or sample.key not in self._samples:
            return
        if not sample.commanded:
            self._drop(sample, 'shadow_unmatched')
        elif not sample.missing:
            self._end(sample)

    def _end(self, sample: PartialSample) -> None:
        """Hand it over, unless something is missing or too much waits to be taken."""
        is_full = len(self._whole) >= self._capacity
        is_full |= self._whole_size + sample.size > self._values_limit
        joined = sample.join()
        if joined is None or is_full:
            self._drop(sample, sample.missing or 'shadow_overflow')
            return
        self._forget(sample)
        self._whole.append(joined)
        self._whole_size += sample.size

    def _drop(self, sample: PartialSample, reason: str) -> None:
        self.drops[reason] += 1
        self._forget(sample)

    def _forget(self, sample: PartialSample) -> None:
        del self._samples[sample.key]
        self._size -= sample.size
        mine = self._of_client[sample.key.client_id]
        mine.discard(sample.key)
        if not mine:
            del self._of_client[sample.key.client_id]
        self._finished[sample.key] = None
        if len(self._finished) > self._capacity:
            self._finished.popitem(last=False)
