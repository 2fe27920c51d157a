# SPDX-License-Identifier: Apache-2.0
"""
Join the parts of one sample: the request, the live chunk, the chunk of the shadow, a second draw
and the executed rows.

Parts may arrive in any order, twice or not at all. A sample is complete when the shadow has
replied and its executed rows are final: the robot plays a later chunk, or the age limit has
passed. A sample that cannot be completed is dropped and counted. Beyond `capacity` requests or
`values_limit` numbers, the oldest samples are dropped. Owned by the thread `shadow`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.data_path.execution_report import ExecutedRun
from lerobot_serve.contract.data_path.header import Envelope

# limit of executed rows of one chunk
EXECUTED_LIMIT = 4096
NO_ROWS = np.zeros((0, 0), np.float32)


class RequestKey(NamedTuple):
    """One request of one robot."""

    client_id: str
    session_epoch: int
    seq: int

    @classmethod
    def of(cls, start: Envelope) -> RequestKey:
        """Return the key of a request or its reply."""
        return cls(start.client_id, start.header.session_epoch, start.header.seq)

    def is_before(self, other: RequestKey) -> bool:
        """Return whether the request precedes another one of the client; epochs wrap around."""
        later = (other.session_epoch - self.session_epoch) % 2**32
        return self.seq < other.seq if later == 0 else later < 2**31


@dataclass(frozen=True, slots=True, eq=False)
class ChunkDraw:
    """The rows of a chunk in robot space, with its policy, seed and time of arrival."""

    rows: Float32Array
    policy: str
    seed: int
    arrived_ns: int


NO_DRAW = ChunkDraw(NO_ROWS, '', 0, 0)


@dataclass(slots=True, eq=False)
class Sample:
    """
    The parts of one sample so far. `commanded` maps row numbers to executed rows; `before` are the
    rows commanded directly before the first one, if known; `gap_rows` are the numbers of executed
    rows that do not directly follow the row before them.
    """

    key: RequestKey
    began_ns: int
    is_requested: bool = False
    requested_ns: int = 0
    episode_id: str = ''
    live: ChunkDraw = NO_DRAW
    shadow: ChunkDraw = NO_DRAW
    second: ChunkDraw = NO_DRAW
    commanded: dict[int, Float32Array] = field(default_factory=dict)
    before: Float32Array = field(default_factory=lambda: NO_ROWS)
    gap_rows: set[int] = field(default_factory=set)
    # the executed rows are final
    is_over: bool = False
    # count of stored numbers
    size: int = 0

    @property
    def missing(self) -> str:
        """The drop reason of an incomplete sample; empty for a complete one."""
        if not self.is_requested:
            return 'shadow_stray'
        if self.shadow is NO_DRAW:
            return 'shadow_unanswered'
        if not self.commanded:
            return 'shadow_unmatched'
        return 'shadow_without_live' if self.live is NO_DRAW else ''


class SampleJoiner:
    """See the module. `drops` counts dropped samples by reason."""

    def __init__(self, *, capacity: int, values_limit: int, age_limit_ns: int) -> None:
        self._capacity, self._values_limit = capacity, values_limit
        self._age_limit_ns = age_limit_ns
        self._samples: OrderedDict[RequestKey, Sample] = OrderedDict()
        self._of_client: dict[str, set[RequestKey]] = {}
        # ended samples, whose further parts are ignored
        self._finished: OrderedDict[RequestKey, None] = OrderedDict()
        self._joined: list[Sample] = []
        self._size = self._joined_size = 0
        self.drops: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def size(self) -> int:
        """Number of entries held, for reports and tests."""
        values = self._size + self._joined_size
        return values + len(self._samples) + len(self._finished) + len(self._joined)

    def request(self, key: RequestKey, episode_id: str, now_ns: int) -> None:
        """Add a request that was sent to the shadow."""
        sample = self._sample(key, now_ns)
        if sample and not sample.is_requested:
            sample.is_requested, sample.requested_ns = True, now_ns
            sample.episode_id = episode_id
            self._finish_if_complete(sample)

    def live(self, key: RequestKey, draw: ChunkDraw) -> None:
        """Add the live chunk."""
        self._add_draw(self._sample(key, draw.arrived_ns), 'live', draw)

    def shadow(self, key: RequestKey, draw: ChunkDraw) -> None:
        """Add the chunk of the shadow."""
        self._add_draw(self._sample(key, draw.arrived_ns), 'shadow', draw)

    def second(self, key: RequestKey, draw: ChunkDraw) -> None:
        """Add the second draw of the live policy."""
        sample = self._samples.get(key)
        if sample is None:
            self.drops['second_draw_late'] += 1
        self._add_draw(sample, 'second', draw)

    def drop(self, key: RequestKey, reason: str, now_ns: int) -> None:
        """Drop a sample that cannot be completed."""
        sample = self._sample(key, now_ns)
        if sample:
            self._drop(sample, reason)

    def executed(self, client_id: str, run: ExecutedRun, before: Float32Array) -> None:
        """Add executed rows; the rows of earlier chunks of the client are final then."""
        key = RequestKey(client_id, run.session_epoch, run.seq)
        sample = self._samples.get(key)
        if sample:
            self._add_rows(sample, run, before)
        earlier = [each for each in self._of_client.get(client_id, ()) if each.is_before(key)]
        for each in earlier:
            self._samples[each].is_over = True
            self._finish_if_complete(self._samples[each])

    def take(self, now_ns: int) -> list[Sample]:
        """End samples beyond the age limit; return the samples completed since the last call."""
        while self._samples:
            sample = next(iter(self._samples.values()))
            if now_ns - sample.began_ns < self._age_limit_ns:
                break
            self._end(sample)
        samples, self._joined, self._joined_size = self._joined, [], 0
        return samples

    def _sample(self, key: RequestKey, now_ns: int) -> Sample | None:
        """Return the sample of a request, new if needed; None for an ended one."""
        sample = self._samples.get(key)
        if sample is None and key not in self._finished:
            sample = self._samples[key] = Sample(key, now_ns)
            self._of_client.setdefault(key.client_id, set()).add(key)
            self._make_room()
        return sample

    def _add_draw(self, sample: Sample | None, part: str, draw: ChunkDraw) -> None:
        """Add a copy of the rows, which are a view of a whole message, if they are the first."""
        if sample and getattr(sample, part) is NO_DRAW:
            rows = np.array(draw.rows, np.float32)
            self._grow(sample, rows.size)
            setattr(sample, part, replace(draw, rows=rows))
            self._finish_if_complete(sample)

    def _add_rows(self, sample: Sample, run: ExecutedRun, before: Float32Array) -> None:
        known = sample.commanded
        columns = len(next(iter(known.values()))) if known else run.rows.shape[1]
        if run.rows.shape[1] != columns or len(known) + len(run.rows) > EXECUTED_LIMIT:
            self.drops['shadow_rows'] += 1
            return
        if not known:
            sample.before = before
        if not len(before):
            sample.gap_rows.add(run.first_row)
        rows = run.rows.copy()
        for number, row in enumerate(rows, run.first_row):
            known.setdefault(number, row)
        self._grow(sample, rows.size)

    def _grow(self, sample: Sample, values: int) -> None:
        sample.size += values
        self._size += values
        self._make_room()

    def _make_room(self) -> None:
        while len(self._samples) > self._capacity or self._size > self._values_limit:
            self._drop(next(iter(self._samples.values())), 'shadow_overflow')

    def _finish_if_complete(self, sample: Sample) -> None:
        """End a sample with final rows, unless a part may still arrive."""
        if not sample.is_over or sample.key not in self._samples:
            return
        if not sample.commanded:
            self._drop(sample, 'shadow_unmatched')
        elif not sample.missing:
            self._end(sample)

    def _end(self, sample: Sample) -> None:
        """End a sample: queue it for `take`, or drop it if incomplete or the queue is full."""
        is_full = len(self._joined) >= self._capacity
        is_full |= self._joined_size + sample.size > self._values_limit
        if sample.missing or is_full:
            self._drop(sample, sample.missing or 'shadow_overflow')
            return
        self._forget(sample)
        self._joined.append(sample)
        self._joined_size += sample.size

    def _drop(self, sample: Sample, reason: str) -> None:
        self.drops[reason] += 1
        self._forget(sample)

    def _forget(self, sample: Sample) -> None:
        del self._samples[sample.key]
        self._size -= sample.size
        keys = self._of_client[sample.key.client_id]
        keys.discard(sample.key)
        if not keys:
            del self._of_client[sample.key.client_id]
        self._finished[sample.key] = None
        if len(self._finished) > self._capacity:
            self._finished.popitem(last=False)
