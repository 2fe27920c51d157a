"""
Log lines that repeat: the first at once, the others counted and told once in a while.

Plain; any thread may say, one thread flushes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
import threading

PERIOD_S = 10.0
KEYS_LIMIT = 256
# where those go that would be one too many
OVERFLOW_KEY = 'others'

Log = Callable[[str], object]


@dataclass(slots=True)
class _Line:
    """The latest of the lines of one key that were not logged, and when one was."""

    log: Log
    text: str
    logged_ns: int
    suppressed: int = 0


class LogThrottle:
    """Lines of one key repeat each other, whatever their words."""

    def __init__(self, clock: Callable[[], int], period_s: float = PERIOD_S) -> None:
        self._clock, self._period_s = clock, period_s
        self._lines: dict[Hashable, _Line] = {}
        self._lock = threading.Lock()

    def say(self, log: Log, key: Hashable, text: str) -> None:
        """Log at once what was not said within the period; hold back and count the rest."""
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
        """Log what was held back for a period, with its count; forget what did not repeat."""
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
