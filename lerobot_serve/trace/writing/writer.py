"""
Writes the trace of one run, in a thread of its own.

`write` deposits a record and returns: no JSON, no disk, no waiting. The thread looks for deposits
every FLUSH_S, so a killed process loses no more than those of that time. What cannot be kept (too
many at once, a full disk) is lost, counted, and told in the trace once it can be written again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import threading
import time
from typing import Any

from lerobot_serve.trace.format.encoding import encode, UnencodableRecord
from lerobot_serve.trace.format.records import drop, footer
from lerobot_serve.trace.writing.record_queue import LossCounter, record_kind, RecordQueue
from lerobot_serve.trace.writing.rotating_file import RotatingTraceFile

FLUSH_S = 0.05
RETRY_NS = 30_000_000_000
# a disk that hangs must not keep a process from ending
CLOSE_S = 2.0


class TraceWriter:
    """See the module. Only the constructor raises."""

    def __init__(
        self,
        folder: Path,
        name: str,
        header: dict[str, Any],
        *,
        limit_bytes: int,
        keep_files: int,
        tell: Callable[[str], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """
        The run has at most `keep_files` files of `limit_bytes`; `header` is one of records.header.

        Raises ValueError, also for a header that is no JSON.
        """
        self._folder = Path(folder)
        self._output = RotatingTraceFile(
            self._folder, name, limit_bytes=limit_bytes, keep_files=keep_files
        )
        encode(header)
        self._header = dict(header)
        self._tell, self._clock = tell, clock
        self._waiting, self._losses = RecordQueue(), LossCounter()
        self._wake = threading.Event()
        self._writing = threading.Lock()
        self._retry_ns: int | None = None
        self._is_closing = self._has_ended = False
        self.written = 0

    def write(self, record: dict[str, Any]) -> None:
        """Deposit a record, which is then no longer the caller's to change; any thread."""
        try:
            if self._is_closing:
                self._losses.add('trace_closed', record_kind(record))
            elif not self._waiting.put(record):
                self._losses.add('trace_overflow', record_kind(record))
        except Exception:
            # whatever it is, it is not worth a request
            self._losses.add('trace_unwritable', record_kind(record))

    def run(self, stop: threading.Event) -> None:
        """Write until `stop` is set and `wake` was called; the body of a thread."""
        while not stop.is_set():
            self.drain()
            if self._wake.wait(FLUSH_S):
                self._wake.clear()
        self.drain()

    def wake(self) -> None:
        """End the present wait; any thread."""
        self._wake.set()

    def drain(self) -> None:
        """Write what waits now; any thread."""
        with self._writing:
            self._drain()

    def close(self) -> None:
        """Write what waits, and the footer; any thread. What is deposited later is lost."""
        self._is_closing = True
        if not self._writing.acquire(timeout=CLOSE_S):
            self._tell(f'the trace {self.path} has no end: writing hangs for {CLOSE_S:g} s')
            return
        try:
            self._drain()
            if self._output.is_open:
                self._end_part('closed')
        except OSError as error:
            self._fail(error)
        finally:
            self._has_ended = True
            self._writing.release()

    @property
    def path(self) -> Path | None:
        """The file that is written; None before the first."""
        return self._output.path

    @property
    def losses(self) -> dict[str, int]:
        """How many records were lost, by reason."""
        return self._losses.total()

    def _drain(self) -> None:
        if self._has_ended:
            return
        self._ensure_open()
        # not until it is empty: others go on depositing
        for _ in range(len(self._waiting)):
            self._put(self._waiting.take())
        self._write_losses()

    def _ensure_open(self) -> None:
        """Begin a first part, or one after a failure when it is time for that."""
        try:
            if self._output.is_open:
                if self._output.is_gone():
                    raise FileNotFoundError(0, 'it was removed')
            elif self._retry_ns is None or self._clock() >= self._retry_ns:
                self._begin_part()
        except OSError as error:
            self._fail(error)

    def _put(self, record: dict[str, Any]) -> None:
        kind = record_kind(record)
        try:
            line = encode(record)
        except UnencodableRecord:
            self._losses.add('trace_unwritable', kind)
            return
        if kind == 'policies':
            self._header['policies'] = record['policies']
        if not self._append(line):
            self._losses.add('trace_failed', kind)

    def _append(self, line: bytes) -> bool:
        """Return whether the line is in the file."""
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
        for reason, kind, count in self._losses.untold():
            record = drop(self._clock(), reason, count=count, of=kind)
            if not self._append(encode(record)):
                return
            self._losses.told(reason, kind, count)

    def _begin_part(self) -> None:
        self._output.begin(self._header)
        self._retry_ns = None

    def _end_part(self, why: str) -> None:
        end = footer(self._clock(), records=self._output.records, dropped=self.losses, ended=why)
        self._output.write(encode(end))
        self._output.close()

    def _fail(self, error: OSError) -> None:
        """Stop for a while; told the first time since something could be written."""
        is_news = self._retry_ns is None
        self._output.close()
        self._retry_ns = self._clock() + RETRY_NS
        if is_news:
            self._tell(
                f'the trace {self.path or self._folder} cannot be written '
                f'({error.strerror or error}): what happens now is lost to it; tried again '
                f'every {RETRY_NS / 1e9:g} s'
            )
