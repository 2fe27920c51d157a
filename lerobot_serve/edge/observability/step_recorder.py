# SPDX-License-Identifier: Apache-2.0
"""
Records control steps in the trace. The tick thread, at a cost of a few microseconds.

Each command is a record. A lasting state (rung, pause, cage trip) is recorded when it starts or
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lerobot_serve.cage.result import Verdict
from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.fallback.rungs import RungKind
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.queue.action_queue import ChunkSource
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import RecordIds, TraceRecord
from lerobot_serve.trace.format.redaction import Redaction
from lerobot_serve.trace.writing.recorder import FULL, Recorder
from lerobot_serve.trace.writing.writer import TraceWriter

VERDICTS = tuple(verdict.name.lower() for verdict in Verdict)
RUNGS = tuple(rung.name.lower() for rung in RungKind)
NOT_FINITE = 'not_finite'


@dataclass(slots=True)
class PreviousStep:
    """The previous step; `cause` is why the cage changed the target."""

    rung: RungKind = RungKind.POLICY
    authority: ControlAuthority | None = None
    latched: bool = False
    stalls: int = 0
    cause: str = ''


class StepRecorder(Recorder, EdgeListener):
    """Writes a record for each command and change."""

    def __init__(
        self,
        writer: TraceWriter,
        clock: Callable[[], int],
        redaction: Redaction = FULL,
        *,
        client_id: str,
    ) -> None:
        super().__init__(writer, clock, redaction, RecordIds(client_id))
        self._seen = PreviousStep()
        # source of the last executed row; many rows share it
        self._source: ChunkSource | None = None
        self._request = self.ids

    def step_finished(
        self,
        now_ns: int,
        control_step: int,
        executed: ExecutedStep | None,
        controller: Controller,
        authority: ControlAuthority,
    ) -> None:
        seen = self._seen
        if executed:
            self.writer.write(self._command(now_ns, control_step, executed))
            if executed.judgement.cause != seen.cause:
                self._trip(now_ns, executed)
        if controller.rung is not seen.rung:
            why = controller.rung_reason
            self.state('rung', seen.rung, controller.rung, why, now_ns=now_ns)
            seen.rung = controller.rung
        if authority is not seen.authority:
            before = seen.authority or 'none'
            self.state('control_authority', before, authority, now_ns=now_ns)
            seen.authority = authority
        if controller.latched is not seen.latched:
            seen.latched = controller.latched
            self._latch(now_ns, executed)
        if controller.stalls != seen.stalls:
            seen.stalls = controller.stalls
            self.incident('stalled', controller.rung_reason, now_ns=now_ns)

    def _command(self, now_ns: int, control_step: int, executed: ExecutedStep) -> TraceRecord:
        planned, decision, judgement = executed.planned, executed.decision, executed.judgement
        source = planned.source if planned else None
        return records.ExecutedRecord(
            now_ns,
            *self._ids(executed).command_fields(),
            control_step=control_step,
            cage_result=VERDICTS[judgement.verdict],
            rung=RUNGS[decision.kind],
            raw_actions=records.copied(decision.wanted),
            commanded=records.copied(judgement.command),
            chunk_row=planned.row if planned else None,
            age_s=executed.age_ns / 1e9 if planned else None,
            slot=source.slot if source else '',
            policy=source.policy if source else '',
            reason=reason(executed),
        )

    def _ids(self, executed: ExecutedStep) -> RecordIds:
        if executed.planned is None:
            return self.ids
        source = executed.planned.source
        if source is not self._source:
            named = source.session_epoch, source.seq, source.episode_id
            self._source, self._request = source, RecordIds(self.ids.client_id, *named)
        return self._request

    def _trip(self, now_ns: int, executed: ExecutedStep) -> None:
        """Record a trip when it starts, and NaN even during one."""
        before, self._seen.cause = self._seen.cause, executed.judgement.cause
        ids, why = self._ids(executed), executed.judgement.reason
        if executed.judgement.cause == NOT_FINITE:
            self.incident('action_not_finite', why, ids=ids, now_ns=now_ns)
        elif not before:
            self.incident('cage_trip', why, ids=ids, now_ns=now_ns)

    def _latch(self, now_ns: int, executed: ExecutedStep | None) -> None:
        if not self._seen.latched:
            self.state('cage', 'latched', 'active', 'reset by operator', now_ns=now_ns)
            return
        why = executed.judgement.reason if executed else ''
        self.state('cage', 'active', 'latched', why, now_ns=now_ns)
        self.incident('cage_latched', why, now_ns=now_ns)


def reason(executed: ExecutedStep) -> str:
    """Return why the cage changed the command and, without an action, the reason of the rung."""
    changed, wanted = executed.judgement.reason, executed.decision.reason
    if executed.planned:
        return changed
    return f'{changed}; {wanted}' if changed else wanted
