# SPDX-License-Identifier: Apache-2.0
"""
The trace of the edge: requests and their ends, commands, drops and state changes with reasons.

Each thread deposits records of its own work; EdgeListener names the calling threads. Each command
is a record, at a cost of a few microseconds. A lasting state (rung, pause, cage trip) is recorded
when it starts or changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import json
from typing import Any

import numpy as np

from lerobot_serve.arrays import Uint8Array
from lerobot_serve.cage.description import Verdict
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import Flag
from lerobot_serve.edge.action_queue import ChunkSource
from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.rungs import RungKind
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.episode_outcomes import EpisodeRecord, OutcomeRegistry, RunOutcome
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.session.connection import ConnectionChange, ConnectionState
from lerobot_serve.edge.session.request import OK, RequestEnd
from lerobot_serve.edge.session_request import encode_robot_limits
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import (
    DeferredFields,
    enum_name,
    Record,
    RecordIds,
    TraceRecord,
)
from lerobot_serve.trace.format.redaction import Redaction
from lerobot_serve.trace.format.replay_field import chunk_range, repeated_rows
from lerobot_serve.trace.writing.open_trace import open_trace
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


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request in flight, and the fields of its record."""

    seq: int
    session_epoch: int
    fields: dict[str, Any]
    repeated_rows: int
    images: tuple[Image, ...]


class EdgeTraceRecorder(StepRecorder):
    """Records one run of the node."""

    def __init__(
        self,
        writer: TraceWriter,
        parameters: EdgeParameters,
        redaction: Redaction,
        *,
        client_id: str,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(writer, clock, redaction, client_id=client_id)
        self._parameters = parameters
        self._sent: SentRequest | None = None
        # slot and policy of the last reply
        self._replying = '', ''
        self._outcomes = OutcomeRegistry()

    # requests

    def sent(self, request: Observation, *, server: str, request_bytes: int) -> None:
        self._outcomes.record_request(request.episode_id)
        fields = {
            'server': server,
            'request_bytes': request_bytes,
            'prefix_policy': request.prefix_policy if len(request.prefix_robot) else '',
            'task': self.redaction.task(request.task),
        }
        header = request.header
        repeated = repeated_rows(request)
        self._sent = SentRequest(
            header.seq, header.session_epoch, fields, repeated, request.images
        )

    def ended(self, end: RequestEnd) -> None:
        request, chunk = end.request, end.chunk
        header = request.header
        ids = RecordIds(self.ids.client_id, header.session_epoch, header.seq, request.episode_id)
        sent = self._take(ids)
        fields = sent.fields if sent else {}
        if chunk:
            fields |= reply_fields(chunk, has_prefix=bool(fields.get('prefix_policy')))
            fields['round_trip_ms'] = (end.at_ns - request.sent_ns) / 1e6
            fields['chunk_bytes'] = end.chunk_bytes
            fields['chunk_range'] = chunk_range(chunk, sent.repeated_rows if sent else 0)
        made = records.RequestRecord(
            end.at_ns,
            *ids.fields(),
            status=enum_name(end.status),
            reason=end.reason,
            episode=request.header.episode,
            later=self._pictures(sent.images) if sent and sent.images else None,
            **fields,
        )
        self.write(made)
        if end.status == NOT_FINITE:
            self.incident('chunk_not_finite', end.reason, ids=ids, now_ns=end.at_ns)
        if chunk and end.status == OK:
            self._record_reply(end.at_ns, request.episode_id, chunk)

    def _take(self, ids: RecordIds) -> SentRequest | None:
        """Return the sent request with these ids; None if it was not sent."""
        sent, self._sent = self._sent, None
        is_this = sent and (sent.seq, sent.session_epoch) == (ids.seq, ids.session_epoch)
        return sent if is_this else None

    def _pictures(self, images: tuple[Image, ...]) -> DeferredFields:
        """Return the images as fields that the writer thread encodes."""
        size = sum(_byte_count(image.data) for image in images)
        return DeferredFields(lambda: {'images': self.redaction.image_records(images)}, size)

    def _record_reply(self, now_ns: int, episode_id: str, chunk: Chunk) -> None:
        self._outcomes.record_reply(episode_id, chunk.slot, chunk.policy)
        if (chunk.slot, chunk.policy) != self._replying:
            self._replying = chunk.slot, chunk.policy
            known = [records.policy(chunk.slot, chunk.policy)] if chunk.policy else []
            self.write(records.PoliciesRecord(now_ns, policies=known))

    # all else

    def changed(self, change: ConnectionChange) -> None:
        why, at_ns = change.reason, change.at_ns
        self.state('connection', change.before, change.after, why, now_ns=at_ns)
        if change.after is ConnectionState.DEAD:
            self.incident('dead', why, now_ns=at_ns)

    def parameters_changed(self, parameters: EdgeParameters) -> None:
        before, self._parameters = self._parameters, parameters
        self.changed_parameters(before, parameters)

    def outcome_received(self, episode_id: str, outcome: int, text: str) -> None:
        self._outcome(episode_id, self._outcomes.record_outcome(episode_id, outcome), text)

    def run_finished(self, episode_id: str, outcome: RunOutcome, text: str) -> None:
        self._outcome(episode_id, self._outcomes.record_run_end(episode_id, outcome), text)

    def _outcome(self, episode_id: str, news: EpisodeRecord | None, why: str) -> None:
        if news:
            ids = RecordIds(self.ids.client_id, episode_id=episode_id)
            self.write(
                records.OutcomeRecord(
                    self.clock(),
                    *ids.fields(),
                    outcome=enum_name(news.outcome),
                    slot=news.slot,
                    policy=news.policy,
                    reason=why,
                )
            )


def _byte_count(data: Uint8Array | bytes) -> int:
    return data.nbytes if isinstance(data, np.ndarray) else len(data)


def reply_fields(chunk: Chunk, *, has_prefix: bool) -> Record:
    """Return the fields of a reply; `prefix_ignored` only if a prefix was sent."""
    return {
        'routing': {'slot': chunk.slot},
        'policy': chunk.policy,
        'seed': chunk.seed or None,
        'queue_wait_ms': chunk.queue_wait_ms,
        'processing_ms': chunk.processing_ms,
        'inference_ms': chunk.inference_ms,
        'superseded': chunk.superseded,
        'prefix_ignored': bool(chunk.header.flags & Flag.PREFIX_IGNORED) if has_prefix else None,
    }


def make_edge_recorder(
    parameters: EdgeParameters,
    robot: RobotDescription,
    *,
    node: str,
    client_id: str,
    clock: Callable[[], int],
    log_warning: Callable[[str], None],
) -> EdgeTraceRecorder | None:
    """Build the trace recorder, None if tracing is disabled."""
    redaction = Redaction(parameters.trace_images, parameters.trace_instructions)
    limits = json.loads(encode_robot_limits(parameters, robot))
    writer = open_trace(
        parameters,
        node=node,
        role='edge',
        clock=clock,
        log_warning=log_warning,
        redaction=redaction,
        extra_parameters={'client_id': client_id, 'fps': robot.fps, 'limits': limits},
    )
    if writer is None:
        return None
    return EdgeTraceRecorder(writer, parameters, redaction, client_id=client_id, clock=clock)
