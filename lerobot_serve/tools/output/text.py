# SPDX-License-Identifier: Apache-2.0
"""
Text of traces, bags, other processes and the network for terminals. Pure functions; any thread.

An escape sequence moves the cursor or recolours a screen, and a line end forges a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
import re

COLOUR = re.compile(r'\x1b\[[0-9;]*m')
COLOUR_END = '\x1b[0m'
REPLACEMENT = '?'


def printable(value: str) -> str:
    """Return a text with unprintable characters escaped."""
    return value if value.isprintable() else repr(value)


def without_controls(text: str) -> str:
    """Return the text as one line without control characters."""
    return ''.join(each if each.isprintable() else REPLACEMENT for each in text)


def sources_line(paths: Iterable[Path | str]) -> str:
    """Return the line that names what a text was made from."""
    return without_controls(f'from {", ".join(map(str, paths))}')


def log_line(line: str, *, colours: bool) -> str:
    """Return a line of a log without control characters; colours stay if wanted."""
    line = line.replace('\t', '    ')
    parts, kept = COLOUR.split(line), COLOUR.findall(line)
    if not (colours and kept):
        return without_controls(''.join(parts))
    pairs = zip(map(without_controls, parts), [*kept, COLOUR_END], strict=True)
    return ''.join(part + colour for part, colour in pairs)
