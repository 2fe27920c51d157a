# SPDX-License-Identifier: Apache-2.0
"""
Record placements, requests, canary events and shadow comparisons in the trace.

Any thread; each call queues one record and returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.data_path.chunk import ReplySummary
from lerobot_serve.contract.data_path.execution_report import ExecutionReport, Halt
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.canary.gate_record import GateRecord
from lerobot_serve.router.canary.record import CanaryEvent
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.data_path.request_observer import RequestObserver
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.placement_table import Placement, request_id
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import OUTCOMES
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.shadow.comparator import ShadowComparison
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import RecordIds, STATUSES
from lerobot_serve.trace.writing.open_trace import open_trace, wall_seconds
from lerobot_serve.trace.writing.recorder import Recorder
from lerobot_serve.trace.writing.writer import TraceWriter

HALT_NAMES: dict[int, str] = {
    Halt.NONE: 'runs',
    Halt.LATCHED: 'cage latched',
    Halt.STOPPED: 'stop called',
}


class RouterTraceRecorder(Recorder, RequestObserver):
    """The recorder of one run; the thread of `writer` writes the records."""

    def __init__(self, writer: TraceWriter, clock: Callable[[], int]) -> None:
        super().__init__(writer, clock)
        # client_id -> Halt, of the robots that ever halted; thread `intake`
        self._halts: dict[str, int] = {}

    def policies(self, slots: dict[str, Slot]) -> None:
        """Record the policy of each slot."""
        known = [records.policy(s.name, s.policy) for s in slots.values() if s.policy]
        self.write(records.PoliciesRecord(self.clock(), policies=known))

    def placed(self, ids: RecordIds, placement: Placement, server: str, policy: str) -> None:
        """Record a placement or a move."""
        values = asdict(placement) | {'split_version': placement.split_version or None}
        self.write(
            records.PlacementRecord(
                self.clock(), *ids.fields(), server=server, policy=policy, **values
            )
        )

    def on_placed(
        self, request: InFlightRequest, placement: Placement, server: str, policy: str
    ) -> None:
        self.placed(request.ids, placement, server, policy)

    def on_replied(
        self, request: InFlightRequest, server: str, raw: bytes, reply: ReplySummary
    ) -> None:
        """Record a reply, with actions or without."""
        now_ns = self.clock()
        self._request(
            request,
            now_ns,
            STATUSES.get(reply.status, str(reply.status)),
            server=server,
            policy=reply.policy,
            seed=reply.seed,
            queue_wait_ms=reply.queue_wait_ms,
            processing_ms=reply.processing_ms,
            inference_ms=reply.inference_ms,
            round_trip_ms=(now_ns - request.started_ns) / 1e6,
            chunk_bytes=len(raw),
        )

    def on_failed(self, request: InFlightRequest, status: Status, text: str) -> None:
        """Record a reply without actions by the router itself."""
        self._request(request, self.clock(), records.enum_name(status), reason=text)

    def on_dropped(self, request: InFlightRequest, reason: str) -> None:
        """Record a request that ended without a reply."""
        self._request(request, self.clock(), reason)

    def _request(self, request: InFlightRequest, now_ns: int, status: str, **more: Any) -> None:
        self.write(
            records.RequestRecord(
                now_ns,
                *request.ids.fields(),
                status=status,
                episode=request.header.episode,
                routing=trace_routing(request),
                **more,
            )
        )

    def canary(self, event: CanaryEvent, share_percent: int | None) -> None:
        """Record an event of the canary."""
        self.write(
            records.CanaryRecord(
                self.clock(),
                event=event.what,
                reason=event.why,
                policy=event.policy,
                share_percent=share_percent,
                evidence=event.figures,
            )
        )

    def admitted(self, policy: str, gate: str, record: GateRecord | None) -> None:
        """Record that a policy may drive in slot b, and by which result of its gate."""
        self.write(
            records.GateRecord(
                self.clock(),
                policy=policy,
                result=gate,
                parent=record.parent if record else '',
                recordings=record.recordings if record else '',
                reason=record.text if record else '',
            )
        )

    def shadow(self, found: ShadowComparison, action_names: tuple[str, ...]) -> None:
        """Record a shadow comparison."""
        ids = RecordIds(found.client_id, found.session_epoch, found.seq, found.episode_id)
        self.write(
            records.ShadowRecord(
                self.clock(),
                *ids.fields(),
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

    def outcome(self, episode_id: str, outcome: int, slot: str, policy: str) -> None:
        """Record the outcome of an episode, with the slot in which it began."""
        self.write(
            records.ReportedOutcomeRecord(
                self.clock(),
                episode_id=episode_id,
                outcome=OUTCOMES[outcome],
                slot=slot,
                policy=policy,
            )
        )

    def command(self, name: str, slot: str, by: str, text: str) -> None:
        """Record a command of an operator that was run."""
        self.write(records.CommandRecord(self.clock(), name=name, slot=slot, by=by, reason=text))

    def on_requested(
        self, session: ClientSession, raw: Raw, header: Header, executed: ExecutionReport | None
    ) -> None:
        """Record that a robot halts, or ends its halt. Thread `intake`."""
        self.on_refused(session, header, executed)

    def on_refused(
        self, session: ClientSession, header: Header, executed: ExecutionReport | None
    ) -> None:
        """As `on_requested`: the report of a refused request counts."""
        if executed is None:
            return
        client_id, halt = session.request.client_id, executed.halt
        before = self._halts.get(client_id, Halt.NONE)
        if halt == before:
            return
        if halt:
            self._halts[client_id] = halt
        else:
            del self._halts[client_id]
        why = ', '.join(filter(None, (f'slot {session.slot}', session.policy)))
        self.state(f'robot {client_id}', halt_name(before), halt_name(halt), why)


def make_recorder(
    parameters: RouterParameters,
    context: NodeContext,
    wall: Callable[[], float] = wall_seconds,
) -> RouterTraceRecorder | None:
    """Return the recorder, None when tracing is disabled; `wall` is for the header."""
    writer = open_trace(
        parameters,
        node=context.name,
        role='router',
        clock=context.clock,
        log_warning=context.log_warning,
        wall=wall,
    )
    return RouterTraceRecorder(writer, context.clock) if writer else None


def halt_name(halt: int) -> str:
    """Return a halt in words, also one of a newer edge."""
    return HALT_NAMES.get(halt, f'halted ({halt})')


def trace_routing(request: InFlightRequest) -> records.Record:
    return records.routing(
        request.slot,
        routing_key=request.episode_id or request_id(request.ids),
        missing_episode_id=not request.episode_id,
        sticky=not request.is_new,
    )
