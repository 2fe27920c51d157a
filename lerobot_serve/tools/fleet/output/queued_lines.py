# SPDX-License-Identifier: Apache-2.0
"""
Write lines in a thread of its own, so that a reader that stops reading blocks no other thread.

A terminal that is stopped (Ctrl-S), a pager or a connection that hangs blocks the thread that
writes to it. `write` only queues; beyond the limit it drops lines, and a line in their place has
their number as soon as there is room again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import os
import select
import threading

# of the queue; a line is 64 KiB at most
LINES_LIMIT, CHARACTERS_LIMIT = 10_000, 4_000_000
RETRY_S = 1.0


class QueuedLines:
    """
    A stream of lines. Any thread calls `write`, one thread `close`; a thread of its own calls
    `write_line`, which may block.
    """

    def __init__(
        self, write_line: Callable[[str], None], dropped_line: Callable[[int], str]
    ) -> None:
        """`dropped_line` returns the line for a number of dropped lines."""
        self._write_line, self._dropped_line = write_line, dropped_line
        self._changed = threading.Condition()
        self._lines: deque[str] = deque()
        self._characters = self._dropped = 0
        self._is_writing = self._is_closed = False
        self._error: OSError | None = None
        # blocked in a write it cannot be joined
        self._thread = threading.Thread(target=self._run, name='output', daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line, or drop and count it. Raises OSError once the reader has gone."""
        with self._changed:
            if self._error:
                raise self._error
            if self._is_full(line):
                self._dropped += 1
                return
            self._add_dropped()
            self._add(line)

    def close(self, limit_s: float) -> bool:
        """Wait until all lines are written; return whether they were within the limit."""
        with self._changed:
            is_written = self._changed.wait_for(self._is_idle, limit_s)
            self._is_closed = True
            self._changed.notify_all()
        return is_written

    def _is_idle(self) -> bool:
        is_empty = not (self._lines or self._dropped or self._is_writing)
        return is_empty or self._error is not None

    def _is_full(self, line: str) -> bool:
        is_long = self._characters + len(line) > CHARACTERS_LIMIT
        return len(self._lines) >= LINES_LIMIT or is_long

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._characters += len(line)
        self._changed.notify_all()

    def _add_dropped(self) -> None:
        if self._dropped:
            self._add(self._dropped_line(self._dropped))
            self._dropped = 0

    # the thread `output`

    def _run(self) -> None:
        while (line := self._next()) is not None:
            try:
                self._write_line(line)
            except OSError as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return

    def _next(self) -> str | None:
        """Return the next line; None when the queue is closed."""
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lines or self._dropped or self._is_closed)
            if self._is_closed:
                return None
            if not self._lines:
                self._add_dropped()
            line = self._lines.popleft()
            self._characters -= len(line)
            self._is_writing = True
            return line


def write_all(file: int, data: bytes) -> None:
    """
    Write all bytes to a file descriptor, however long it takes. Without the buffer of sys.stdout,
    whose lock a blocked write would hold at exit. Raises OSError when the reader has gone.
    """
    while data:
        try:
            data = data[os.write(file, data) :]
        except BlockingIOError:
            # another process of the terminal has made it non-blocking
            select.select([], [file], [], RETRY_S)
