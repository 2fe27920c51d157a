"""
The server's trace: what became of every request that reached a session, what was dropped before
that, sessions, and what the server itself did. Any thread; each call deposits one record and
returns. What a record tells of a request and its answer is put together by the thread that writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
import threading
from typing import Any, NamedTuple

from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.inference.request_queue import QueuedRequest
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_table import Session
from lerobot_serve.trace.format import records, replay_field
from lerobot_serve.trace.format.chunk_range import chunk_range, repeated_rows
from lerobot_serve.trace.format.deferred_fields import DEFERRED, DeferredFields
from lerobot_serve.trace.format.records import Record, RecordIds
from lerobot_serve.trace.format.redaction import Redaction
from lerobot_serve.trace.writing.open_trace import open_trace
from lerobot_serve.trace.writing.writer import TraceWriter
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.header import read_envelope
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Flag, Status
from lerobot_serve.wire.session import format_tags

STATUSES = {int(status): status.name.lower() for status in Status}
INCIDENT_STATUSES = (Status.POLICY_ERROR, Status.NOT_FINITE)
# threads that hang must not keep the trace from having an end
JOIN_S = 2.0


class ReplayContent(NamedTuple):
    """What again.keep makes a field of; `asked` is None where the request was not read."""

    asked: Observation | None
    answer: bytes
    info: dict[str, Any]


class ReplyRecord(NamedTuple):
    """What the thread that writes needs of a request that was answered."""

    chunk: Chunk
    status: str
    request_bytes: int
    chunk_bytes: int
    superseded: int
    task: str
    # empty where the request had no prefix
    prefix_policy: str
    chunk_range: list[int] | None
    images: tuple[Image, ...]
    # None where the trace does not keep all
    whole: ReplayContent | None

    @property
    def held_bytes(self) -> int:
        """Return how much memory waits with it: images, and all else, are views of the request."""
        if self.whole:
            return self.request_bytes + self.chunk_bytes
        return self.request_bytes if self.images else 0


class ServerTraceRecorder:
    """Records of one run; `run` is the body of the thread that writes them."""

    def __init__(
        self,
        writer: TraceWriter,
        parameters: ServerParameters,
        statistics: ServerStatistics,
        clock: Callable[[], int],
    ) -> None:
        self.writer, self._clock = writer, clock
        self._parameters, self._statistics = parameters, statistics
        self._redaction = redaction(parameters)
        self._dropped: Counter[str] = Counter()
        self._dropping = threading.Lock()

    def run(self, stop: threading.Event, others: Iterable[threading.Thread]) -> None:
        """Write until `stop` is set and the other threads have told all."""
        self.writer.run(stop)
        for thread in others:
            thread.join(JOIN_S)
        self.look()
        self.writer.close()

    # requests

    def answered(self, mail: QueuedRequest, chunk: Chunk, raw: bytes, status: str = '') -> None:
        """A request has its answer `raw`; `status` says why it was not sent."""
        now_ns, answer = self._clock(), self._answer(mail, chunk, raw, status)
        later = DeferredFields(partial(self._told, answer), answer.held_bytes)
        self.writer.write({'kind': 'request', 'mono_ns': now_ns, DEFERRED: later})
        if chunk.status in INCIDENT_STATUSES:
            name, why = STATUSES[chunk.status], chunk.status_text
            self.writer.write(records.incident(now_ns, name, why=why, ids=ids_of(chunk)))

    def _answer(self, mail: QueuedRequest, chunk: Chunk, raw: bytes, status: str) -> ReplyRecord:
        read = mail.read.observation
        is_prefixed = read and (read.prefix_model.size or read.prefix_robot.size)
        return ReplyRecord(
            chunk,
            status or STATUSES[chunk.status],
            len(mail.raw),
            len(raw),
            mail.superseded,
            (read.task or mail.session.task) if read else '',
            read.prefix_policy if is_prefixed else '',
            chunk_range(chunk, repeated_rows(read)) if read else None,
            read.images if read and self._redaction.images != 'none' else (),
            ReplayContent(read, raw, session_fields(mail.session))
            if raw and self._redaction.keeps_everything
            else None,
        )

    def _told(self, answer: ReplyRecord) -> Record:
        """Return what the record tells; the thread that writes."""
        chunk = answer.chunk
        told = {
            **ids_of(chunk).fields(),
            'status': answer.status,
            'episode': chunk.header.episode,
            'routing': {'slot': chunk.slot},
            'policy': chunk.policy,
            'seed': chunk.seed or None,
            'queue_wait_ms': chunk.queue_wait_ms,
            'request_bytes': answer.request_bytes,
            'chunk_bytes': answer.chunk_bytes,
            'chunk_range': answer.chunk_range,
            'superseded': answer.superseded,
            'reason': chunk.status_text,
            'task': self._redaction.task(answer.task),
        }
        if chunk.status == Status.OK:
            told['processing_ms'] = chunk.processing_ms
            told['inference_ms'] = chunk.inference_ms
        if answer.prefix_policy:
            told['prefix_policy'] = answer.prefix_policy
            told['prefix_ignored'] = bool(chunk.header.flags & Flag.PREFIX_IGNORED)
        if answer.images:
            told['images'] = self._redaction.image_records(answer.images)
        if answer.whole:
            told[replay_field.REPLAY_FIELD] = replay_field.encode_field(*answer.whole)
        return told

    def lost(self, mail: QueuedRequest, reason: str) -> None:
        """A request is answered no more."""
        now_ns, start = self._clock(), read_envelope(mail.raw)
        ids = RecordIds(
            start.client_id, start.header.session_epoch, start.header.seq, start.episode_id
        )
        self.writer.write(
            records.request(
                now_ns,
                ids,
                status=reason,
                episode=start.header.episode,
                queue_wait_ms=(now_ns - mail.arrived_ns) / 1e6,
                request_bytes=len(mail.raw),
            )
        )

    def look(self) -> None:
        """Tell what was dropped since the last look and is no request's; now and then."""
        with self._dropping:
            strays = self._statistics.strays()
            for reason, count in (strays - self._dropped).items():
                self.writer.write(records.drop(self._clock(), reason, count=count))
            self._dropped = strays

    # sessions

    def opened(self, session: Session) -> None:
        self._session(session, 'closed', 'open', format_tags(session.ask))

    def closed(self, session: Session, why: str) -> None:
        self._session(session, 'open', 'closed', why)

    def _session(self, session: Session, before: str, after: str, why: str) -> None:
        ids = RecordIds(session.ask.client_id, session.ask.session_epoch)
        self.writer.write(records.state(self._clock(), 'session', before, after, why=why, ids=ids))

    # the server

    def serves(self, served: PolicyDescription | None) -> None:
        """Another policy is served from now on, or none."""
        slot = self._parameters.slot
        known = [records.policy(slot, served.fingerprint)] if served else []
        self.writer.write(records.policies(self._clock(), known))

    def stood(self, before: str, after: str, why: str) -> None:
        """The server as a whole is in another state."""
        self.writer.write(records.state(self._clock(), 'server', before, after, why=why))

    def captured(self, name: str, why: str) -> None:
        """Requests were captured into a file, or could not be."""
        self.writer.write(records.incident(self._clock(), name, why=why))

    def changed(self, parameters: ServerParameters) -> None:
        """Parameters were changed."""
        before, self._parameters = asdict(self._parameters), parameters
        shown = self._redaction.value
        for name, value in asdict(parameters).items():
            if before[name] != value:
                old, new = shown(name, before[name]), shown(name, value)
                self.writer.write(records.parameter(self._clock(), name, old, new))


def make_trace_recorder(
    parameters: ServerParameters,
    node: str,
    statistics: ServerStatistics,
    *,
    clock: Callable[[], int],
    tell: Callable[[str], None],
) -> ServerTraceRecorder | None:
    """Return what writes the trace, None when none is wanted."""
    writer = open_trace(
        parameters,
        node=node,
        role='server',
        clock=clock,
        log_warning=tell,
        redaction=redaction(parameters),
    )
    return ServerTraceRecorder(writer, parameters, statistics, clock) if writer else None


def session_fields(session: Session) -> dict[str, Any]:
    """Return what a session adds to a request before the policy sees it."""
    return {
        'session_id': session.session_id,
        'task': session.task,
        'robot_type': session.ask.robot_type,
        'rtc_execution_horizon': session.ask.rtc_execution_horizon,
    }


def ids_of(chunk: Chunk) -> RecordIds:
    header = chunk.header
    return RecordIds(chunk.client_id, header.session_epoch, header.seq, chunk.episode_id)


def redaction(parameters: ServerParameters) -> Redaction:
    return Redaction(parameters.trace_images, parameters.trace_instructions)
