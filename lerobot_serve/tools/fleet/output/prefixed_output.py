# SPDX-License-Identifier: Apache-2.0
"""Write the output of several processes as lines, each with the name of its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
