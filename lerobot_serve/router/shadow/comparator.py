# SPDX-License-Identifier: Apache-2.0
"""
Compare the chunks of the shadow with executed actions, per request.

The thread `shadow` reports events in any order and polls for comparisons. `on_executed` receives
all execution reports, the other methods only requests that were sampled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.header import Envelope
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.replicas.latency import RecentLatency
from lerobot_serve.router.shadow.command_tails import CommandTails
from lerobot_serve.router.shadow.divergence import (
    Divergence,
    divergence,
    Incomparable,
    PolicySpread,
    shared_rows,
)
from lerobot_serve.router.shadow.qualification import Qualification
from lerobot_serve.router.shadow.remote_cage import RemoteCages, would_trip
from lerobot_serve.router.shadow.sample_joiner import (
    ChunkDraw,
    NO_DRAW,
    RequestKey,
    Sample,
    SampleJoiner,
)
from lerobot_serve_interfaces.msg import ShadowSummary

SAMPLES_LIMIT = 4096
# 64 MiB of float32
VALUES_LIMIT = 1 << 24
# longer than the playing time of any chunk
AGE_LIMIT_NS = 30_000_000_000
ROBOTS_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class ShadowComparison:
    """
    The comparison of one request. `divergence` and `per_action` are in robot space, NaN for
    non-finite actions of the shadow. `divergence_in_spreads` is also NaN if the live policy is
    deterministic or its spread is unknown.
    """

    client_id: str
    session_epoch: int
    episode_id: str
    seq: int
    live_policy: str
    shadow_policy: str
    rows: int
    divergence: float
    divergence_in_spreads: float
    per_action: tuple[float, ...]
    limits_known: bool
    cage_would_trip: bool
    latency_ms: float


class ShadowComparator:
    """The thread `shadow`; `summary` any thread. `qualification` survives a restart."""

    def __init__(self, qualification: Qualification) -> None:
        self.qualification = qualification
        self._joiner = SampleJoiner(
            capacity=SAMPLES_LIMIT, values_limit=VALUES_LIMIT, age_limit_ns=AGE_LIMIT_NS
        )
        self._tails = CommandTails(ROBOTS_LIMIT)
        self._cages = RemoteCages(ROBOTS_LIMIT)
        self._spread, self._latency = PolicySpread(), RecentLatency()
        self._shadow_policy = self._live_policy = ''

    @property
    def drops(self) -> Counter[str]:
        """Counts of samples that were not compared, by reason."""
        return self._joiner.drops

    @property
    def size(self) -> int:
        """Number of entries held, for reports and tests."""
        return self._joiner.size + len(self._tails) + len(self._cages)

    def on_session(self, session_request: OpenSessionRequest) -> str:
        """
        Store the cage limits of a session request; return why they are unusable, empty otherwise.
        """
        problem = self._cages.update_limits(session_request)
        if problem:
            self.drops['limits_unusable'] += 1
        return problem

    def close(self) -> None:
        """Save the records. The last call of the thread."""
        self.qualification.save()

    def on_live_request(self, start: Envelope, now_ns: int) -> None:
        """Record a request that was sent to the shadow."""
        self._joiner.request(RequestKey.of(start), start.episode_id, now_ns)

    def on_unsent(self, start: Envelope, reason: str, now_ns: int) -> None:
        """Record a sampled request that was not sent to the shadow."""
        self._joiner.drop(RequestKey.of(start), reason, now_ns)

    def on_live_chunk(self, chunk: Chunk, now_ns: int) -> None:
        """Record a live reply; drop the sample for a reply without actions."""
        if chunk.status == Status.OK:
            self._joiner.live(_key(chunk), _draw(chunk, now_ns))
        else:
            self._joiner.drop(_key(chunk), 'shadow_unmatched', now_ns)

    def on_shadow_chunk(self, chunk: Chunk, now_ns: int) -> None:
        """Record a reply of the shadow."""
        if chunk.status == Status.OK:
            self._joiner.shadow(_key(chunk), _draw(chunk, now_ns))
        else:
            self._joiner.drop(_key(chunk), 'shadow_failed', now_ns)

    def on_second_draw(self, key: RequestKey, chunk: Chunk, now_ns: int) -> None:
        """Record a second draw of the live policy; `key` is the key of the robot's request."""
        if chunk.status == Status.OK:
            self._joiner.second(key, _draw(chunk, now_ns))
        else:
            self.drops['second_draw_failed'] += 1

    def on_executed(self, start: Envelope, executed: ExecutionReport) -> None:
        """Record the execution report of a request."""
        for run, before in self._tails.follow(start, executed):
            self._joiner.executed(start.client_id, run, before)

    def poll(self, now_ns: int) -> list[ShadowComparison]:
        """Return the comparisons since the last call."""
        found = (self._compare(sample, now_ns) for sample in self._joiner.take(now_ns))
        comparisons = [comparison for comparison in found if comparison]
        self.qualification.save_periodically(now_ns)
        return comparisons

    def summary(self) -> ShadowSummary:
        """
        Return the statistics of the latest policy in shadow, including earlier runs of the router;
        the latencies are of recent samples. Without stamp, drops and unmet requirements.
        """
        record = self.qualification.of(self._shadow_policy)
        return ShadowSummary(
            shadow_policy=self._shadow_policy,
            live_policy=self._live_policy,
            hours_in_shadow=record.hours,
            episodes=record.episodes,
            samples=record.samples,
            divergence_mean=record.divergence_mean,
            divergence_in_spreads_mean=record.spreads_mean,
            cage_trips=record.trips,
            latency_ms_p50=self._latency.percentile_ms(50),
            latency_ms_p95=self._latency.percentile_ms(95),
        )

    def _compare(self, sample: Sample, now_ns: int) -> ShadowComparison | None:
        """Return the comparison of a complete sample; count it and return None if impossible."""
        self._add_spread(sample)
        try:
            numbers = shared_rows(sample.commanded, sample.shadow.rows)
        except Incomparable as error:
            self.drops[error.reason] += 1
            return None
        rows = sample.shadow.rows[numbers]
        commanded = np.stack([sample.commanded[number] for number in numbers])
        cage = self._cages.of(sample.key.client_id, rows.shape[1])
        gaps = [i for i, number in enumerate(numbers) if i and number in sample.gap_rows]
        trips = would_trip(cage, sample.before, rows, gaps)
        distance = divergence(commanded, rows)
        return self._record(sample, distance, cage is not None, trips, now_ns)

    def _record(
        self,
        sample: Sample,
        distance: Divergence,
        limits_known: bool,
        trips: bool,
        now_ns: int,
    ) -> ShadowComparison:
        live, shadow = sample.live, sample.shadow
        in_spreads = self._spread.in_spreads(live.policy, live.seed, distance.overall)
        latency_ms = max(0, shadow.arrived_ns - sample.requested_ns) / 1e6
        self._latency.add(latency_ms)
        self._shadow_policy, self._live_policy = shadow.policy, live.policy
        self.qualification.add(
            shadow.policy,
            sample.episode_id,
            now_ns,
            divergence=distance.overall,
            in_spreads=in_spreads,
            trips=trips,
            latency_ms=latency_ms,
        )
        return ShadowComparison(
            sample.key.client_id,
            sample.key.session_epoch,
            sample.episode_id,
            sample.key.seq,
            live_policy=live.policy,
            shadow_policy=shadow.policy,
            rows=distance.rows,
            divergence=distance.overall,
            divergence_in_spreads=in_spreads,
            per_action=distance.per_action,
            limits_known=limits_known,
            cage_would_trip=trips,
            latency_ms=latency_ms,
        )

    def _add_spread(self, sample: Sample) -> None:
        """Add the divergence between both draws of the live policy, if there is a second one."""
        live, second = sample.live, sample.second
        if second is NO_DRAW:
            return
        shortest = min(len(live.rows), len(second.rows))
        numbers = [number for number in sample.commanded if number < shortest]
        is_another = second.policy == live.policy and second.seed != live.seed
        if not (is_another and numbers and live.rows.shape[1] == second.rows.shape[1]):
            self.drops['second_draw_unusable'] += 1
            return
        self._spread.add(live.policy, divergence(live.rows[numbers], second.rows[numbers]).overall)


def _key(chunk: Chunk) -> RequestKey:
    return RequestKey(chunk.client_id, chunk.header.session_epoch, chunk.header.seq)


def _draw(chunk: Chunk, now_ns: int) -> ChunkDraw:
    return ChunkDraw(chunk.robot, chunk.policy, chunk.seed, now_ns)
