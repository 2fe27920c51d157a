# SPDX-License-Identifier: Apache-2.0
"""
Write the output of several processes as lines, each with the name of its process; any thread.

A terminal that is stopped (Ctrl-S), a pager or a connection that hangs blocks the thread that
writes to it, so lines are written in a thread of its own. `write` only queues; beyond the limit it
drops lines, and a line in their place has their number as soon as there is room again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
import os
import select
import threading
from typing import TextIO

from lerobot_serve.tools.output.text import log_line

# of a terminal: cyan, yellow, green, magenta, blue, and the bright ones; red is for errors
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
OWN_NAME = 'up'
LINE_LIMIT = 1 << 16


class LineBuffer:
    """Joins the pieces that a pipe delivers into lines."""

    def __init__(self) -> None:
        self._open = b''
        self.last_line = ''

    def add(self, piece: bytes) -> Iterator[str]:
        """Yield each line that is complete; a longer one than LINE_LIMIT in parts."""
        *lines, self._open = (self._open + piece).split(b'\n')
        if len(self._open) > LINE_LIMIT:
            lines.append(self._open)
            self._open = b''
        for line in lines:
            yield self._text(line)

    def rest(self) -> Iterator[str]:
        """Yield the line that has no end, if any."""
        if self._open:
            line, self._open = self._open, b''
            yield self._text(line)

    def _text(self, line: bytes) -> str:
        text = line.decode(errors='replace').rstrip('\r')
        self.last_line = text.strip() or self.last_line
        return text


class PrefixedOutput:
    """Gives lines with aligned names, in colour if wanted, to `write_line`, one in each call."""

    def __init__(
        self, write_line: Callable[[str], object], names: Iterable[str], *, colours: bool
    ) -> None:
        self._write_line, self._has_colours = write_line, colours
        self._names = [OWN_NAME, *names]
        self._width = max(map(len, self._names))

    def write(self, name: str, line: str) -> None:
        """Write one line. Raises OSError when the reader has gone."""
        self._write_line(self._text(name, line))

    def own(self, line: str) -> None:
        """Write a line of `up` itself."""
        self.write(OWN_NAME, line)

    def dropped_line(self, count: int) -> str:
        """Return the line in the place of lines that could not be written."""
        return self._text(OWN_NAME, f'{count} lines dropped: this output was not read')

    def _text(self, name: str, line: str) -> str:
        return f'{self.prefix(name)} {log_line(line, colours=self._has_colours)}\n'

    def prefix(self, name: str) -> str:
        """Return the name as each of its lines begins."""
        text = f'{name:<{self._width}} |'
        if not self._has_colours:
            return text
        place = self._names.index(name)
        # the own lines are bold
        code = '1' if place == 0 else str(COLOURS[(place - 1) % len(COLOURS)])
        return f'\x1b[{code}m{text}\x1b[0m'


def wants_colours(stream: TextIO, environment: dict[str, str]) -> bool:
    """Return whether to write colours: to a terminal, unless NO_COLOR is set."""
    is_plain = environment.get('NO_COLOR') or environment.get('TERM') == 'dumb'
    return stream.isatty() and not is_plain


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
