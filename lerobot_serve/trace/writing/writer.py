# SPDX-License-Identifier: Apache-2.0
"""
Write the trace of one run in a separate thread.

`write` queues a record and returns without encoding, disk access or waiting. The thread drains the
queue every FLUSH_S; a killed process loses at most the records of that time. Records that do not
fit (queue or disk full) are lost and counted; the trace reports them once it is writable.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import threading
import time

from lerobot_serve.trace.format.encoding import encode, UnencodableRecord
from lerobot_serve.trace.format.records import (
    ClockRecord,
    DropRecord,
    fields_of,
    FooterRecord,
    HeaderRecord,
    PoliciesRecord,
    StateRecord,
    TraceRecord,
    wall_text,
)
from lerobot_serve.trace.format.run_files import LINE_LIMIT
from lerobot_serve.trace.writing.record_queue import LossCounter, record_kind, RecordQueue
from lerobot_serve.trace.writing.rotating_file import RotatingTraceFile

CHECK_NS, MOVED_S = 60_000_000_000, 1.0


class TimeOfDay:
    """
    Watches the time of day against the clock of a node: a robot without a battery for its clock
    starts at a wrong one, and NTP sets it later. `wall` returns the seconds since 1970. One thread
    at a time.
    """

    def __init__(self, clock: Callable[[], int], wall: Callable[[], float]) -> None:
        self._clock, self._wall = clock, wall
        self.take()

    def take(self) -> tuple[int, float]:
        """Return one instant by both clocks."""
        now_ns, wall_s = self._clock(), self._wall()
        self._checked_ns, self._offset_s = now_ns, wall_s - now_ns / 1e9
        return now_ns, wall_s

    def has_moved(self) -> bool:
        """Return whether it was set since `take`; looks once in CHECK_NS."""
        now_ns = self._clock()
        if now_ns - self._checked_ns < CHECK_NS:
            return False
        self._checked_ns = now_ns
        return abs(self._wall() - now_ns / 1e9 - self._offset_s) > MOVED_S


FLUSH_S = 0.05
# a wait that is longer by this shows that the process did not run
STOOD_STILL_NS = 500_000_000
RETRY_NS = 30_000_000_000
# a hanging disk must not block the exit of the process
CLOSE_S = 2.0


class TraceWriter:
    """The trace of one run. Only the constructor raises."""

    def __init__(
        self,
        folder: Path,
        name: str,
        header: HeaderRecord,
        *,
        limit_bytes: int,
        keep_files: int,
        log_warning: Callable[[str], None],
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """
        The run has at most `keep_files` files of `limit_bytes`; `header` is from records.header.
        `wall` returns the seconds since 1970.

        Raises ValueError, also for a header that is not JSON.
        """
        self._folder = Path(folder)
        self._output = RotatingTraceFile(
            self._folder, name, limit_bytes=limit_bytes, keep_files=keep_files
        )
        encode(header)
        self._header = fields_of(header)
        self._log_warning, self._clock = log_warning, clock
        self._queue, self._losses = RecordQueue(), LossCounter()
        self._wake = threading.Event()
        self._write_lock = threading.Lock()
        self._retry_ns: int | None = None
        self._time_of_day = TimeOfDay(clock, wall)
        self._is_closing = self._has_ended = self._has_left_out = False
        self.written = 0

    def write(self, record: TraceRecord) -> None:
        """Queue a record, which the caller must not change afterwards; any thread."""
        try:
            if self._is_closing:
                self._losses.add('trace_closed', record_kind(record))
            elif not self._queue.put(record):
                self._losses.add('trace_overflow', record_kind(record))
        except Exception:
            # no trace error may fail a request
            self._losses.add('trace_unwritable', record_kind(record))

    def run(self, stop: threading.Event) -> None:
        """
        Write until `stop` is set and `wake` is called; the body of a thread. A wait that lasts too
        long is recorded: the process was stopped, or had no CPU.
        """
        while not stop.is_set():
            self.drain()
            began_ns = self._clock()
            if self._wake.wait(FLUSH_S):
                self._wake.clear()
            self._note_wait(self._clock() - began_ns)
        self.drain()

    def _note_wait(self, waited_ns: int) -> None:
        if waited_ns >= STOOD_STILL_NS:
            # `reason` is the length, which readers need
            record = StateRecord(
                self._clock(),
                component='process',
                before='still',
                after='runs',
                reason=f'{waited_ns / 1e9:.3f} s',
            )
            self.write(record)

    def wake(self) -> None:
        """End the current wait; any thread."""
        self._wake.set()

    def drain(self) -> None:
        """Write all queued records; any thread."""
        with self._write_lock:
            self._drain()

    def close(self) -> None:
        """Write the queued records and the footer; any thread. Later records are lost."""
        self._is_closing = True
        if not self._write_lock.acquire(timeout=CLOSE_S):
            self._log_warning(
                f'trace {self.path}: not closed, a write has been blocked for {CLOSE_S:g} s'
            )
            return
        try:
            self._drain()
            if self._output.is_open:
                self._end_part('closed')
        except OSError as error:
            self._fail(error)
        finally:
            self._has_ended = True
            self._write_lock.release()

    @property
    def path(self) -> Path | None:
        """The current file; None before the first."""
        return self._output.path

    @property
    def losses(self) -> dict[str, int]:
        """The number of lost records by reason."""
        return self._losses.total()

    def _drain(self) -> None:
        if self._has_ended:
            return
        self._ensure_open()
        # bounded by the length now: other threads keep queueing
        for _ in range(len(self._queue)):
            self._put(self._queue.take())
        self._write_losses()
        if self._time_of_day.has_moved():
            # where it cannot be written, the header of the next part has it
            now_ns, wall_s = self._time_of_day.take()
            self._append(encode(ClockRecord(now_ns, wall_time=wall_text(wall_s))))

    def _ensure_open(self) -> None:
        """Open the first part, or a new one after a failure once the retry is due."""
        try:
            if self._output.is_open:
                if self._output.is_deleted():
                    raise FileNotFoundError(0, 'the file was removed')
            elif self._retry_ns is None or self._clock() >= self._retry_ns:
                self._begin_part()
        except OSError as error:
            self._fail(error)

    def _put(self, record: TraceRecord) -> None:
        kind = record_kind(record)
        try:
            line = encode(record, self._on_left_out)
        except UnencodableRecord:
            self._losses.add('trace_unwritable', kind)
            return
        if isinstance(record, PoliciesRecord):
            self._header['policies'] = record.policies
        if not self._append(line):
            self._losses.add('trace_failed', kind)

    def _on_left_out(self, size: int) -> None:
        """Log the first line that is too long."""
        if not self._has_left_out:
            self._has_left_out = True
            self._log_warning(
                f'trace {self.path}: a record with its images has {size} bytes, at most '
                f'{LINE_LIMIT} are allowed; it and others like it are written without images: '
                'they cannot be replayed. Send smaller images or JPEG, or capture requests instead'
            )

    def _append(self, line: bytes) -> bool:
        """Append a line to the current part; return whether it is written."""
        if not self._output.is_open:
            return False
        try:
            if not self._output.has_room(len(line)):
                self._end_part('rotated')
                self._begin_part()
            self._output.write(line)
        except OSError as error:
            self._fail(error)
            return False
        self.written += 1
        return True

    def _write_losses(self) -> None:
        for reason, kind, count in self._losses.unreported():
            record = DropRecord(self._clock(), reason=reason, count=count, item=kind)
            if not self._append(encode(record)):
                return
            self._losses.mark_reported(reason, kind, count)

    def _begin_part(self) -> None:
        if self.path:
            now_ns, wall_s = self._time_of_day.take()
            self._header |= {'mono_ns': now_ns, 'wall_time': wall_text(wall_s)}
        self._output.begin(self._header)
        self._retry_ns = None

    def _end_part(self, reason: str) -> None:
        end = FooterRecord(
            self._clock(),
            records=self._output.records,
            records_lost=self.losses,
            end_reason=reason,
        )
        self._output.write(encode(end))
        self._output.close()

    def _fail(self, error: OSError) -> None:
        """Pause until the retry; log the first failure since the last success."""
        is_first = self._retry_ns is None
        self._output.close()
        self._retry_ns = self._clock() + RETRY_NS
        if is_first:
            self._log_warning(
                f'trace {self.path or self._folder}: write failed ({error.strerror or error}); '
                f'records are lost; retrying every {RETRY_NS / 1e9:g} s'
            )
