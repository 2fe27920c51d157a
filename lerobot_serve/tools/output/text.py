# SPDX-License-Identifier: Apache-2.0
"""
Text for terminals, JSON for programs, and times as people read and type them: local, with the
offset to UTC wherever a date is; files and JSON hold UTC. Pure functions, but for the time zone
and the standard output, which may be closed, full, or of another encoding; any thread.

An escape sequence moves the cursor or recolours a screen, and a line end forges a row. RFC 8259
has no NaN and no infinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
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


DAY_S, MINUTE_S = 86400.0, 60.0
TIME_PATTERN = re.compile(r'(\d{1,2}:\d{2})(:\d{2}(?:\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})?')


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    """
    A time given by the user: `of_day`, local without an offset, and `since_1970_s` when it has a
    date.

    length_s  14:03 is a whole minute, 14:03:20 an instant
    """

    of_day: time
    since_1970_s: float | None
    length_s: float


def parse_time_of_day(words: str) -> TimeOfDay:
    """Parse 14:03, 14:03:20 or 2026-07-30T14:03:20, also with an offset. Raises ValueError."""
    try:
        if match := TIME_PATTERN.fullmatch(words):
            of_day = time.fromisoformat(words.zfill(len(words) + (words[1] == ':')))
            return TimeOfDay(of_day, None, 0.0 if match[2] else MINUTE_S)
        named = datetime.fromisoformat(words)
        since_1970_s = named.timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            'must be a time of day like 14:03 or 14:03:20, or ISO 8601 like 2026-07-30T14:03:20; '
            f'local, or with an offset like +02:00 or Z; got {words!r}'
        ) from None
    has_seconds = re.search(r':\d{2}:\d{2}', words) is not None
    return TimeOfDay(named.timetz(), since_1970_s, 0.0 if has_seconds else MINUTE_S)


def resolve_within(moment: TimeOfDay, begin_s: float, end_s: float) -> float:
    """
    Return the moment in seconds since 1970: on the last day on which it is between begin and end,
    otherwise the nearest one.
    """
    if moment.since_1970_s is not None:
        return moment.since_1970_s
    try:
        last = datetime.fromtimestamp(end_s, moment.of_day.tzinfo).date()
        found = [s for days in (1, 0, -1) for s in _on(last + timedelta(days), moment.of_day)]
    except (ValueError, OverflowError, OSError):
        # a trace whose clock is damaged
        return end_s
    inside = [s for s in found if begin_s - moment.length_s <= s <= end_s]
    if inside:
        return max(inside)
    return min(found, key=lambda s: abs(s - min(max(s, begin_s), end_s)))


def _on(day: date, of_day: time) -> Iterator[float]:
    """Yield the time on a day: twice in the hour that a change of the clock repeats."""
    for fold in (0, 1):
        yield datetime.combine(day, of_day.replace(fold=fold)).timestamp()


def format_local(time_s: float, *, day: bool = False, to: str = 'milliseconds') -> str:
    """
    Format a time as 14:03:20.125, with `day` as 2026-07-30 14:03:20.125+02:00; `to` is the
    smallest unit, such as minutes.
    """
    try:
        when = datetime.fromtimestamp(time_s).astimezone()
    except (ValueError, OverflowError, OSError):
        return f'{time_s:.3f} s'
    return when.isoformat(' ', to) if day else when.time().isoformat(to)


def local_offset_s(time_s: float) -> float:
    """Return how far local time is ahead of UTC, 0 for a time of no calendar."""
    try:
        offset = datetime.fromtimestamp(time_s).astimezone().utcoffset()
    except (ValueError, OverflowError, OSError):
        return 0.0
    return offset.total_seconds() if offset else 0.0


def format_utc(time_s: float) -> str:
    """Format a time as 2026-07-30T14:03:20.125Z."""
    try:
        when = datetime.fromtimestamp(time_s, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f'{time_s:.3f} s'
    return when.isoformat(timespec='milliseconds').replace('+00:00', 'Z')
