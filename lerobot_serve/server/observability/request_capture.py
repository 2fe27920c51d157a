# SPDX-License-Identifier: Apache-2.0
"""
Capture raw requests around errors: the last ones in memory, those of a failed client on disk.

See docs/capture.md. Other threads only add to memory; the `capture` thread writes. A full disk
pauses capturing, never the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import contextlib
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
import re
import threading
import time
from typing import Any

from msgspec.structs import replace

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.names import file_name
from lerobot_serve.contract.schema import Status
from lerobot_serve.server.inference.request_queue import DecodedRequest, QueuedRequest
from lerobot_serve.trace.format import incident_file
from lerobot_serve.trace.format.incident_file import RecordedExchange
from lerobot_serve.trace.format.records import STATUSES, wall_text

REQUESTS_LIMIT = 1024
# memory of a request beside its bytes
OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class CapturedRequest:
    """A request with its raw reply, completed at `wall_s`."""

    session_id: str
    queued: QueuedRequest
    reply: bytes
    wall_s: float

    @property
    def size(self) -> int:
        return len(self.queued.raw) + len(self.reply) + OVERHEAD_BYTES


class RequestRing:
    """Holds at most `limit_bytes`, taken and unreleased requests included; drops the oldest."""

    def __init__(self, limit_bytes: int, limit: int = REQUESTS_LIMIT) -> None:
        self._limit_bytes, self._limit = limit_bytes, limit
        self._kept: deque[CapturedRequest] = deque()
        self._lock = threading.Lock()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, kept: CapturedRequest) -> None:
        """Add a request; one larger than the limit is ignored."""
        room = self._limit_bytes - kept.size
        if room < 0:
            return
        with self._lock:
            while self._kept and (self.held_bytes > room or len(self._kept) >= self._limit):
                self.held_bytes -= self._kept.popleft().size
            if self.held_bytes <= room:
                self._kept.append(kept)
                self.held_bytes += kept.size

    def take(self, session_id: str = '') -> list[CapturedRequest]:
        """
        Remove and return the requests of one session, or all, oldest first. They count until
        `release`.
        """
        with self._lock:
            taken = [
                kept for kept in self._kept if kept.session_id == session_id or not session_id
            ]
            if taken:
                rest = (
                    kept for kept in self._kept if session_id and kept.session_id != session_id
                )
                self._kept = deque(rest)
        return taken

    def release(self, taken: list[CapturedRequest]) -> None:
        """Release the memory of taken requests."""
        with self._lock:
            self.held_bytes -= sum(kept.size for kept in taken)


# approximate size of a file without its requests
METADATA_BYTES = 4096
# TIME-CLIENT-SEQ-REASON; a killed process may leave a partial file
CAPTURE_FILE_NAME = re.compile(r'\d{8}T\d{6}\.\d{3}Z-.+-\d+-[a-z_]+\.safetensors(\.part)?')


@dataclass(frozen=True, slots=True)
class CaptureReason:
    """Why requests are captured; without a client, those of all clients."""

    code: str
    wall_s: float
    client: str = ''
    seq: int = 0
    text: str = ''


class CaptureFiles:
    """At most `limit_bytes` in `folder`; `metadata` returns the fields of every file."""

    def __init__(
        self, folder: Path, limit_bytes: int, metadata: Callable[[], dict[str, Any]]
    ) -> None:
        self.folder = folder
        self._limit_bytes, self._metadata = limit_bytes, metadata

    def path(self, reason: CaptureReason) -> Path:
        """Return the path of the file for this capture."""
        client = file_name(reason.client) if reason.client else 'all'
        when = wall_text(reason.wall_s).replace('-', '').replace(':', '')
        return self.folder / f'{when}-{client}-{reason.seq}-{reason.code}{incident_file.SUFFIX}'

    def write(self, reason: CaptureReason, kept: list[CapturedRequest]) -> Path:
        """Write a file and return its path; remove the oldest files. Raises OSError."""
        path = self.path(reason)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_oldest(sum(each.size for each in kept) + METADATA_BYTES)
        incident = {
            'code': reason.code,
            'wall_time': wall_text(reason.wall_s),
            'client_id': reason.client,
            'seq': reason.seq,
            'reason': reason.text,
        }
        incident_file.write_incident(
            path, [incident_pair(each) for each in kept], incident | self._metadata()
        )
        return path

    def _remove_oldest(self, size: int) -> None:
        """Remove the oldest files until `size` fits. Raises OSError."""
        # names begin with the time
        files = sorted(
            path for path in self.folder.iterdir() if CAPTURE_FILE_NAME.fullmatch(path.name)
        )
        sizes = [file_size(path) for path in files]
        excess = sum(sizes) + size - self._limit_bytes
        for path, freed in zip(files, sizes, strict=True):
            if excess <= 0:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                excess -= freed


def incident_pair(kept: CapturedRequest) -> RecordedExchange:
    """Return a request and its reply with the fields a replay needs."""
    chunk, session = wire_chunk.decode(kept.reply), kept.queued.session
    info = {
        'client_id': chunk.client_id,
        'session_epoch': chunk.header.session_epoch,
        'seq': chunk.header.seq,
        'episode': chunk.header.episode,
        'episode_id': chunk.episode_id,
        'wall_time': wall_text(kept.wall_s),
        'status': STATUSES[chunk.status],
        'reason': chunk.status_text,
        'slot': chunk.slot,
        'policy': chunk.policy,
        'seed': chunk.seed,
        'queue_wait_ms': chunk.queue_wait_ms,
        'inference_ms': chunk.inference_ms,
        'session_id': session.session_id,
        'task': session.task,
        'robot_type': session.request.robot_type,
        'rtc_execution_horizon': session.request.rtc_execution_horizon,
        'reply_deadline_s': session.request.reply_deadline_s,
    }
    return RecordedExchange(bytes(kept.queued.raw), kept.reply, info)


def file_size(path: Path) -> int:
    """Return the size of a file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


REASON_OF_STATUS: dict[int, str] = {
    Status.POLICY_ERROR: 'policy_error',
    Status.NOT_FINITE: 'not_finite',
    Status.TOO_LATE: 'too_late',
}
OPERATOR = 'operator'
RETRY_S = 30.0


class NothingToCapture(Exception):
    """Why no file is written."""


@dataclass(frozen=True, slots=True)
class CaptureJob:
    """Requests to write, and the reason."""

    reason: CaptureReason
    requests: list[CapturedRequest]


class RequestCapture:
    """`on_event` receives a name and a text for each written or failed capture."""

    def __init__(
        self,
        files: CaptureFiles,
        limit_bytes: int,
        *,
        on_event: Callable[[str, str], None],
        clock: Callable[[], int] = time.monotonic_ns,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._files, self._on_event = files, on_event
        self._clock, self._wall_clock = clock, wall_clock
        self._ring = RequestRing(limit_bytes)
        self._jobs: SimpleQueue[CaptureJob | None] = SimpleQueue()
        self._stopped, self._retry_ns = '', 0

    # any thread

    def on_reply(self, queued: QueuedRequest, chunk: Chunk, raw: bytes) -> None:
        """Keep a request and its reply; queue the session's requests for writing on an error."""
        if not raw:
            # the reply could not be encoded
            return
        name = queued.session.session_id
        # a copy: the memory of a request on the local path belongs to its client
        queued = replace(queued, raw=bytes(queued.raw), decoded=DecodedRequest())
        self._ring.add(CapturedRequest(name, queued, raw, self._wall_clock()))
        code = capture_reason(queued, chunk, self._clock())
        if not code:
            return
        kept = self._ring.take(name)
        if kept:
            seq, text = chunk.header.seq, chunk.status_text
            reason = CaptureReason(code, self._wall_clock(), chunk.client_id, seq, text)
            self._jobs.put(CaptureJob(reason, kept))
        else:
            # too large, or errors come faster than the disk writes
            self._on_event('capture_overflow', '')

    def capture_all(self) -> Path:
        """Queue all kept requests for writing; return the path. Raises NothingToCapture."""
        if self._stopped:
            raise NothingToCapture(f'capture is paused: {self._stopped}')
        kept = self._ring.take()
        if not kept:
            raise NothingToCapture('no request since the last capture')
        reason = CaptureReason(OPERATOR, self._wall_clock())
        self._jobs.put(CaptureJob(reason, kept))
        return self._files.path(reason)

    def wake(self) -> None:
        """Wake the thread, so that it ends after the queued jobs."""
        self._jobs.put(None)

    # capture thread

    def run(self, stop: threading.Event) -> None:
        """Write until `stop` is set and `wake` was called."""
        while (job := self._jobs.get()) or not stop.is_set():
            if job:
                self._write(job)
                # free the requests before the next wait
                del job

    def _write(self, job: CaptureJob) -> None:
        try:
            if self._stopped and self._clock() < self._retry_ns:
                self._on_event('capture_failed', '')
                return
            path = self._files.write(job.reason, job.requests)
            self._stopped = ''
            self._on_event('captured', str(path))
        except Exception as error:
            # most likely a full disk; no error here may stop the server
            self._fail(error)
        finally:
            self._ring.release(job.requests)

    def _fail(self, error: Exception) -> None:
        reason = getattr(error, 'strerror', None) or str(error)
        is_first = not self._stopped
        self._stopped, self._retry_ns = reason, self._clock() + int(RETRY_S * 1e9)
        text = f'{self._files.folder}: {reason}; next attempt in {RETRY_S:g} s'
        self._on_event('capture_failed', text if is_first else '')


def capture_reason(queued: QueuedRequest, chunk: Chunk, now_ns: int) -> str:
    """Return the reason to capture this reply; empty if there is none."""
    within_s = queued.session.request.reply_deadline_s
    is_late = within_s and (now_ns - queued.arrived_ns) / 1e9 > within_s
    if chunk.status == Status.OK:
        return 'too_late' if is_late else ''
    return REASON_OF_STATUS.get(chunk.status, '')
