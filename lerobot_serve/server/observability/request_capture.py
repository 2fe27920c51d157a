"""
Requests around trouble, kept as they came: the last ones in memory, and on disk those of a robot
whose request failed. docs/capture.md.

The threads that answer only add to memory. A thread of its own writes; a disk that is full ends
capturing for a while, never serving.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
import threading
import time

from lerobot_serve.server.inference.request_queue import QueuedRequest
from lerobot_serve.server.observability.capture_files import CaptureFiles, CaptureReason
from lerobot_serve.server.observability.request_ring import CapturedRequest, RequestRing
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.schema import Status

REASON_OF_STATUS = {
    Status.POLICY_ERROR: 'policy_error',
    Status.NOT_FINITE: 'not_finite',
    Status.TOO_LATE: 'too_late',
}
OPERATOR = 'operator'
RETRY_S = 30.0


class NothingToCapture(Exception):
    """Why no file is written; for the operator."""


@dataclass(frozen=True, slots=True)
class CaptureJob:
    """Requests that are to be written."""

    trouble: CaptureReason
    kept: list[CapturedRequest]


class RequestCapture:
    """`told` hears what was written or could not be: a name and why. Raises nothing."""

    def __init__(
        self,
        files: CaptureFiles,
        limit_bytes: int,
        *,
        told: Callable[[str, str], None],
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._files, self._told = files, told
        self._clock, self._wall = clock, wall
        self._ring = RequestRing(limit_bytes)
        self._orders: SimpleQueue[CaptureJob | None] = SimpleQueue()
        self._stopped, self._retry_ns = '', 0

    # any thread

    def answered(self, mail: QueuedRequest, chunk: Chunk, raw: bytes) -> None:
        """Keep a request and its answer; have them written when something went wrong."""
        if not raw:
            # it could not be encoded
            return
        name = mail.session.session_id
        self._ring.add(CapturedRequest(name, mail, raw, self._wall()))
        why = capture_reason(mail, chunk, self._clock())
        if not why:
            return
        kept = self._ring.take(name)
        if kept:
            seq, reason = chunk.header.seq, chunk.status_text
            trouble = CaptureReason(why, self._wall(), chunk.client_id, seq, reason)
            self._orders.put(CaptureJob(trouble, kept))
        else:
            # too large, or trouble comes faster than the disk is
            self._told('capture_overflow', '')

    def everything(self) -> Path:
        """
        Have all that is kept written, and return where it will lie. Raises NothingToCapture.
        """
        if self._stopped:
            raise NothingToCapture(f'capturing has stopped: {self._stopped}')
        kept = self._ring.take()
        if not kept:
            raise NothingToCapture('there was no request since the last capture')
        trouble = CaptureReason(OPERATOR, self._wall())
        self._orders.put(CaptureJob(trouble, kept))
        return self._files.path(trouble)

    def wake(self) -> None:
        """End the thread once it has written what is due."""
        self._orders.put(None)

    # a thread of its own

    def run(self, stop: threading.Event) -> None:
        """Write until `stop` is set and `wake` was called."""
        while (order := self._orders.get()) or not stop.is_set():
            if order:
                self._write(order)
                # what was written must not be held here while nothing comes
                del order

    def _write(self, order: CaptureJob) -> None:
        try:
            if self._stopped and self._clock() < self._retry_ns:
                self._told('capture_failed', '')
                return
            path = self._files.write(order.trouble, order.kept)
            self._stopped = ''
            self._told('captured', str(path))
        except Exception as error:
            # a full disk most likely; whatever it is, it is not worth a robot
            self._fail(error)
        finally:
            self._ring.release(order.kept)

    def _fail(self, error: Exception) -> None:
        reason = getattr(error, 'strerror', None) or str(error)
        is_news = not self._stopped
        self._stopped, self._retry_ns = reason, self._clock() + int(RETRY_S * 1e9)
        text = f'{self._files.folder}: {reason}; tried again after {RETRY_S:g} s'
        self._told('capture_failed', text if is_news else '')


def capture_reason(mail: QueuedRequest, chunk: Chunk, now_ns: int) -> str:
    """Return what is wrong with an answer, empty for nothing."""
    within_s = mail.session.ask.answer_within_s
    is_late = within_s and (now_ns - mail.arrived_ns) / 1e9 > within_s
    if chunk.status == Status.OK:
        return 'too_late' if is_late else ''
    return REASON_OF_STATUS.get(chunk.status, '')
