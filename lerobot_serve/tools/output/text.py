# SPDX-License-Identifier: Apache-2.0
"""
Text for terminals and JSON for programs. Pure functions, but for those of the standard output,
which may be closed, full, or of another encoding; any thread.

An escape sequence moves the cursor or recolours a screen, and a line end forges a row. RFC 8259
has no NaN and no infinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import io
import json
from math import isfinite
import os
from pathlib import Path
import re
import sys
from typing import Any

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


def json_text(found: Any, indent: int | None = None) -> str:
    """Return an object as JSON; a number that is none, such as one not known yet, is null."""
    return json.dumps(_finite(found), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def prepare_output() -> None:
    """Let characters that a terminal does not have be printed as their codes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='backslashreplace')


def flush_output() -> None:
    """Write what is printed. Raises OSError."""
    # a process that was started without a standard output has None
    if sys.stdout:
        sys.stdout.flush()


def end_output() -> None:
    """Drop what cannot be written, so that the end of Python does not try it again."""
    with open(os.devnull, 'wb') as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
