# SPDX-License-Identifier: Apache-2.0
"""
Limit repeated log lines: log the first at once, count the others and log them periodically.

Plain; any thread may log, one thread flushes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
import threading
from typing import NamedTuple

PERIOD_S = 10.0
KEYS_LIMIT = 256
# key of lines beyond KEYS_LIMIT
OVERFLOW_KEY = 'others'

Log = Callable[[str], object]


class Logs(NamedTuple):
    """The log functions of a node, and its clock."""

    info: Log
    warning: Log
    error: Log
    clock: Callable[[], int]


@dataclass(slots=True)
class _Line:
    """The latest suppressed line of one key, and the time of the last logged one."""

    log: Log
    text: str
    logged_ns: int
    suppressed: int = 0


class LogThrottle:
    """Throttles lines per key; lines with one key count as repetitions of each other."""

    def __init__(self, clock: Callable[[], int], period_s: float = PERIOD_S) -> None:
        self._clock, self._period_s = clock, period_s
        self._lines: dict[Hashable, _Line] = {}
        self._lock = threading.Lock()

    def emit(self, log: Log, key: Hashable, text: str) -> None:
        """Log the first line of a key within the period; suppress and count the others."""
        with self._lock:
            if key not in self._lines and len(self._lines) >= KEYS_LIMIT:
                key = OVERFLOW_KEY
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = _Line(log, text, self._clock())
            else:
                line.log, line.text = log, text
                line.suppressed += 1
        if line is None:
            log(text)

    def flush(self) -> None:
        """Log suppressed lines of a period with their count; remove keys without repetition."""
        due = []
        with self._lock:
            now_ns = self._clock()
            for key, line in list(self._lines.items()):
                if now_ns - line.logged_ns < 1e9 * self._period_s:
                    continue
                if not line.suppressed:
                    del self._lines[key]
                    continue
                times = f'({line.suppressed} times in {self._period_s:g} s)'
                due.append((line.log, f'{line.text} {times}'))
                line.suppressed, line.logged_ns = 0, now_ns
        for log, text in due:
            log(text)
