# SPDX-License-Identifier: Apache-2.0
"""
The trace of the router: placements, requests, canary events and shadow comparisons.

Any thread; each call deposits one record and returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from lerobot_serve.router.canary.record import CanaryEvent
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.shadow.comparator import ShadowComparison
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import RecordIds
from lerobot_serve.trace.writing.open_trace import open_trace
from lerobot_serve.trace.writing.writer import TraceWriter
from lerobot_serve.wire.chunk import ReplySummary
from lerobot_serve.wire.schema import Status

STATUSES = {int(status): status.name.lower() for status in Status}


class RouterTraceRecorder:
    """Records of one run; `writer` is the thread that writes them."""

    def __init__(self, writer: TraceWriter, clock: Callable[[], int]) -> None:
        self.writer, self._clock = writer, clock

    def policies(self, slots: dict[str, Slot]) -> None:
        """Record the policy of each slot."""
        known = [records.policy(s.name, s.policy) for s in slots.values() if s.policy]
        self.writer.write(records.policies(self._clock(), known))

    def placed(self, ids: RecordIds, placement: Placement, server: str, policy: str) -> None:
        """Record a placement or a move."""
        self.writer.write(
            records.placement(
                self._clock(),
                ids,
                slot=placement.slot,
                bucket=placement.bucket,
                split_percent=placement.split_percent,
                moved=placement.moved,
                routing_key=placement.key,
                missing_episode_id=placement.missing_episode_id,
                sticky=placement.sticky,
                server=server,
                policy=policy,
                reason=placement.reason,
            )
        )

    def replied(
        self, flight: InFlightRequest, server: str, raw: bytes, answer: ReplySummary
    ) -> None:
        """Record a reply, with actions or without."""
        now_ns = self._clock()
        self.writer.write(
            records.request(
                now_ns,
                trace_ids(flight),
                status=STATUSES.get(answer.status, str(answer.status)),
                episode=flight.header.episode,
                routing=trace_routing(flight),
                server=server,
                policy=answer.policy,
                seed=answer.seed,
                queue_wait_ms=answer.queue_wait_ms,
                processing_ms=answer.processing_ms,
                inference_ms=answer.inference_ms,
                round_trip_ms=(now_ns - flight.began_ns) / 1e6,
                chunk_bytes=len(raw),
            )
        )

    def failed(self, flight: InFlightRequest, status: Status | str, text: str) -> None:
        """Record a request without a reply of a replica; `status` is why."""
        self.writer.write(
            records.request(
                self._clock(),
                trace_ids(flight),
                status=status,
                episode=flight.header.episode,
                routing=trace_routing(flight),
                reason=text,
            )
        )

    def canary(self, happening: CanaryEvent, share_percent: int | None) -> None:
        """Record an event of the canary."""
        self.writer.write(
            records.canary(
                self._clock(), happening.what, reason=happening.why, share_percent=share_percent
            )
        )

    def shadow(self, found: ShadowComparison, action_names: tuple[str, ...]) -> None:
        """Record a comparison of the shadow with executed actions."""
        ids = RecordIds(found.client_id, found.session_epoch, found.seq, found.episode_id)
        self.writer.write(
            records.shadow(
                self._clock(),
                ids,
                live_policy=found.live_policy,
                shadow_policy=found.shadow_policy,
                rows=found.rows,
                divergence=found.divergence,
                divergence_in_spreads=found.divergence_in_spreads,
                divergence_per_action=dict(zip(action_names, found.per_action, strict=False)),
                cage_would_trip=found.cage_would_trip if found.limits_known else None,
                latency_ms=found.latency_ms,
            )
        )

    def state(self, of: str, before: str, after: str, why: str) -> None:
        """Record a change of state."""
        self.writer.write(records.state(self._clock(), of, before, after, reason=why))

    def parameters(self, old: RouterParameters, new: RouterParameters) -> None:
        """Record changed parameters."""
        before, after = asdict(old), asdict(new)
        for name, value in after.items():
            if before[name] != value:
                self.writer.write(records.parameter(self._clock(), name, before[name], value))


def make_recorder(
    parameters: RouterParameters,
    node: str,
    *,
    clock: Callable[[], int],
    warn: Callable[[str], None],
) -> RouterTraceRecorder | None:
    """Return the recorder, None when tracing is disabled."""
    writer = open_trace(parameters, node=node, role='router', clock=clock, log_warning=warn)
    return RouterTraceRecorder(writer, clock) if writer else None


def trace_ids(flight: InFlightRequest) -> RecordIds:
    ask = flight.robot.ask
    return RecordIds(ask.client_id, ask.session_epoch, flight.seq, flight.episode_id)


def trace_routing(flight: InFlightRequest) -> records.Record:
    ask, seq = flight.robot.ask, flight.seq
    return records.routing(
        flight.slot,
        routing_key=flight.episode_id or f'{ask.client_id}:{ask.session_epoch}:{seq}',
        missing_episode_id=not flight.episode_id,
        sticky=not flight.is_new,
    )
