# SPDX-License-Identifier: Apache-2.0
"""Parses a time of day from the command line and formats times, in UTC. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
import re

DAY_S, MINUTE_S = 86400.0, 60.0
TIME_PATTERN = re.compile(r'(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d{1,6})?))?')


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    """
    A time given by the user: `of_day_s` since midnight, and `since_1970_s` when it has a date.

    length_s  14:03 is a whole minute, 14:03:20 an instant
    """

    of_day_s: float
    since_1970_s: float | None
    length_s: float


def parse_time_of_day(words: str) -> TimeOfDay:
    """Parse 14:03, 14:03:20 or 2026-07-30T14:03:20. Raises ValueError."""
    if match := TIME_PATTERN.fullmatch(words):
        hours, minutes, seconds = int(match[1]), int(match[2]), float(match[3] or 0)
        if hours > 23 or minutes > 59 or seconds >= MINUTE_S:
            raise ValueError(f'{words} is not a time of day')
        of_day_s = hours * 3600 + minutes * 60 + seconds
        return TimeOfDay(of_day_s, None, 0.0 if match[3] else MINUTE_S)
    try:
        named = datetime.fromisoformat(words.replace('Z', '+00:00'))
        since_1970_s = named.replace(tzinfo=named.tzinfo or timezone.utc).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f'must be a time of day like 14:03 or 14:03:20, or ISO 8601 like '
            f'2026-07-30T14:03:20, in UTC; got {words!r}'
        ) from None
    is_point = bool(named.second or named.microsecond) or words.count(':') > 1
    return TimeOfDay(since_1970_s % DAY_S, since_1970_s, 0.0 if is_point else MINUTE_S)


def resolve_within(moment: TimeOfDay, begin_s: float, end_s: float) -> float:
    """
    Return the moment in seconds since 1970: on the last day on which it is between begin and end,
    otherwise the nearest one.
    """
    if moment.since_1970_s is not None:
        return moment.since_1970_s
    day_s = end_s // DAY_S * DAY_S
    for candidate_s in (day_s + moment.of_day_s, day_s - DAY_S + moment.of_day_s):
        if begin_s - moment.length_s <= candidate_s <= end_s:
            return candidate_s
    around = (day_s + moment.of_day_s + days * DAY_S for days in (-1, 0, 1))
    return min(around, key=lambda s: abs(s - min(max(s, begin_s), end_s)))


def format_utc(time_s: float, *, day: bool = False) -> str:
    """Format a time as 14:03:20.125, with `day` also the date."""
    try:
        when = datetime.combine(datetime(1970, 1, 1), time()) + timedelta(seconds=time_s)
    except OverflowError:
        return f'{time_s:.3f} s'
    return when.isoformat(' ', 'milliseconds')[0 if day else 11 :]
