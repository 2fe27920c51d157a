# SPDX-License-Identifier: Apache-2.0
"""
Capture raw requests around errors: the last ones in memory, those of a failed client on disk.

See docs/capture.md. Other threads only add to memory; the `capture` thread writes. A full disk
pauses capturing, never the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
import threading
import time

from msgspec.structs import replace

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.schema import Status
from lerobot_serve.server.inference.request_queue import DecodedRequest, QueuedRequest
from lerobot_serve.server.observability.capture_files import CaptureFiles, CaptureReason
from lerobot_serve.server.observability.request_ring import CapturedRequest, RequestRing

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
