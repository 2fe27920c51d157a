# SPDX-License-Identifier: Apache-2.0
"""
Write the trace of the server: requests with their replies, drops, sessions, state changes.

Any thread; each call queues a record and returns. The `trace` thread builds the request records.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.contract.services.session import format_tags
from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.inference.request_queue import QueuedRequest
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_table import Session
from lerobot_serve.trace.format import records, replay_field
from lerobot_serve.trace.format.records import DeferredFields, Record, RecordIds, STATUSES
from lerobot_serve.trace.format.redaction import Redaction
from lerobot_serve.trace.format.replay_field import chunk_range, repeated_rows
from lerobot_serve.trace.writing.open_trace import open_trace
from lerobot_serve.trace.writing.recorder import Recorder
from lerobot_serve.trace.writing.writer import TraceWriter

INCIDENT_STATUSES = (Status.POLICY_ERROR, Status.NOT_FINITE)


class ReplaySource(NamedTuple):
    """Arguments of replay_field.encode_field; `observation` is None if decoding failed."""

    observation: Observation | None
    reply: bytes
    info: dict[str, Any]


class ReplyRecord(NamedTuple):
    """A request with its reply, as the `trace` thread needs it."""

    chunk: Chunk
    status: str
    request_bytes: int
    chunk_bytes: int
    superseded: int
    task: str
    # empty without a prefix
    prefix_policy: str
    chunk_range: list[int] | None
    images: tuple[Image, ...]
    # None unless the trace keeps everything
    replay_source: ReplaySource | None

    @property
    def held_bytes(self) -> int:
        """Return the memory that the record holds: its arrays are views of the raw request."""
        if self.replay_source:
            return self.request_bytes + self.chunk_bytes
        return self.request_bytes if self.images else 0


class ServerTraceRecorder(Recorder):
    """Records of one run; `run` is the body of the `trace` thread."""

    def __init__(
        self,
        writer: TraceWriter,
        parameters: ServerParameters,
        statistics: ServerStatistics,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(writer, clock, redaction(parameters))
        self._parameters = parameters
        # those without a request record
        self.drops = statistics.unrecorded_drops

    # requests

    def on_reply(self, queued: QueuedRequest, chunk: Chunk, raw: bytes, status: str = '') -> None:
        """A request has its reply `raw`; `status` is set if the reply was not sent."""
        now_ns, reply = self.clock(), self._reply_record(queued, chunk, raw, status)
        later = DeferredFields(partial(self._request_record, reply), reply.held_bytes)
        self.write(records.RequestRecord(now_ns, later=later))
        if chunk.status in INCIDENT_STATUSES:
            name, why = STATUSES[chunk.status], chunk.status_text
            self.incident(name, why, ids=ids_of(chunk), now_ns=now_ns)

    def _reply_record(
        self, queued: QueuedRequest, chunk: Chunk, raw: bytes, status: str
    ) -> ReplyRecord:
        read = queued.decoded.observation
        has_prefix = read is not None and (read.prefix_model.size or read.prefix_robot.size)
        return ReplyRecord(
            chunk,
            status=status or STATUSES[chunk.status],
            request_bytes=len(queued.raw),
            chunk_bytes=len(raw),
            superseded=queued.superseded,
            task=(read.task or queued.session.task) if read else '',
            prefix_policy=read.prefix_policy if read and has_prefix else '',
            chunk_range=chunk_range(chunk, repeated_rows(read)) if read else None,
            images=read.images if read and self.redaction.images != 'none' else (),
            replay_source=ReplaySource(read, raw, session_fields(queued.session))
            if raw and self.redaction.keeps_everything
            else None,
        )

    def _request_record(self, reply: ReplyRecord) -> Record:
        """Return the fields of a request record; `trace` thread."""
        chunk = reply.chunk
        known = records.RequestRecord(
            None,
            *ids_of(chunk).fields(),
            status=reply.status,
            episode=chunk.header.episode,
            routing={'slot': chunk.slot},
            policy=chunk.policy,
            seed=chunk.seed or None,
            queue_wait_ms=chunk.queue_wait_ms,
            request_bytes=reply.request_bytes,
            chunk_bytes=reply.chunk_bytes,
            chunk_range=reply.chunk_range,
            superseded=reply.superseded,
            reason=chunk.status_text,
            task=self.redaction.task(reply.task),
        )
        # the others follow in the line
        record = records.fields_of(known)
        if chunk.status == Status.OK:
            record['processing_ms'] = chunk.processing_ms
            record['inference_ms'] = chunk.inference_ms
        if reply.prefix_policy:
            record['prefix_policy'] = reply.prefix_policy
            record['prefix_ignored'] = bool(chunk.header.flags & Flag.PREFIX_IGNORED)
        if reply.images:
            record['images'] = self.redaction.image_records(reply.images)
        if reply.replay_source:
            record[replay_field.REPLAY_FIELD] = replay_field.encode_field(*reply.replay_source)
        return record

    def on_dropped(self, queued: QueuedRequest, reason: str) -> None:
        """A request is dropped without a reply."""
        now_ns, start = self.clock(), read_envelope(queued.raw)
        ids = RecordIds(
            start.client_id, start.header.session_epoch, start.header.seq, start.episode_id
        )
        self.write(
            records.RequestRecord(
                now_ns,
                *ids.fields(),
                status=reason,
                episode=start.header.episode,
                queue_wait_ms=(now_ns - queued.arrived_ns) / 1e6,
                request_bytes=len(queued.raw),
            )
        )

    def record_drops(self) -> None:
        """Record the drops without a request record since the last call."""
        self.dropped(self.drops())

    # sessions

    def on_session_opened(self, session: Session) -> None:
        self._session(session, 'closed', 'open', format_tags(session.request))

    def on_session_closed(self, session: Session, why: str) -> None:
        self._session(session, 'open', 'closed', why)

    def _session(self, session: Session, before: str, after: str, why: str) -> None:
        ids = RecordIds(session.request.client_id, session.request.session_epoch)
        self.state('session', before, after, why, ids=ids)

    # the server

    def on_policy_changed(self, description: PolicyDescription | None) -> None:
        """The served policy changed; None if no policy is served."""
        slot = self._parameters.slot
        known = [records.policy(slot, description.fingerprint)] if description else []
        self.write(records.PoliciesRecord(self.clock(), policies=known))

    def on_swapped(self, before: str, description: PolicyDescription) -> None:
        """Another policy has replaced the served one, without a stop."""
        why = 'swap_policy: the sessions stay open'
        self.state('policy', before, description.fingerprint, why)
        self.on_policy_changed(description)

    def on_swap_failed(self, why: str) -> None:
        """The served policy was not replaced."""
        self.incident('swap_failed', why)

    def on_parameters_changed(self, parameters: ServerParameters) -> None:
        """Live parameters changed."""
        before, self._parameters = self._parameters, parameters
        self.changed_parameters(before, parameters)


def make_trace_recorder(
    parameters: ServerParameters,
    node: str,
    statistics: ServerStatistics,
    *,
    clock: Callable[[], int],
    log_warning: Callable[[str], None],
) -> ServerTraceRecorder | None:
    """Return the recorder, None if tracing is disabled."""
    writer = open_trace(
        parameters,
        node=node,
        role='server',
        clock=clock,
        log_warning=log_warning,
        redaction=redaction(parameters),
    )
    return ServerTraceRecorder(writer, parameters, statistics, clock) if writer else None


def session_fields(session: Session) -> dict[str, Any]:
    """Return the fields a session adds to a request."""
    return {
        'session_id': session.session_id,
        'task': session.task,
        'robot_type': session.request.robot_type,
        'rtc_execution_horizon': session.request.rtc_execution_horizon,
    }


def ids_of(chunk: Chunk) -> RecordIds:
    header = chunk.header
    return RecordIds(chunk.client_id, header.session_epoch, header.seq, chunk.episode_id)


def redaction(parameters: ServerParameters) -> Redaction:
    return Redaction(parameters.trace_images, parameters.trace_instructions)
