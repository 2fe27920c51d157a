# SPDX-License-Identifier: Apache-2.0
"""
Shows the progress of a long conversion on standard error: rate and time left. One thread.

On a terminal one line is rewritten; elsewhere a line is added every half minute.
"""

from __future__ import annotations

import sys
import time

from lerobot_serve.tools.dataset.plans.bag_index import CountBytes

TERMINAL_PERIOD_S, FILE_PERIOD_S = 0.5, 30.0
CLEAR_LINE = '\r\x1b[K'


class ConversionProgress:
    """A Report of a conversion."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._period_s = TERMINAL_PERIOD_S if self._is_terminal else FILE_PERIOD_S

    def begin(self, what: str, total_bytes: int) -> CountBytes:
        """Begin a phase of so many bytes; return what counts them."""
        begin_s = shown_s = time.monotonic()
        done = 0

        def count(size: int) -> None:
            nonlocal done, shown_s
            done += size
            now_s = time.monotonic()
            if now_s - shown_s >= self._period_s:
                shown_s = now_s
                self._show(progress_text(what, done, total_bytes, now_s - begin_s))

        return count

    def note(self, text: str) -> None:
        """Show a line that stays."""
        print(f'{CLEAR_LINE if self._is_terminal else ""}{text}', file=sys.stderr)

    def _show(self, text: str) -> None:
        if self._is_terminal:
            print(f'{CLEAR_LINE}{text}', end='', file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Remove the line that is rewritten."""
        if self._is_terminal:
            print(CLEAR_LINE, end='', file=sys.stderr, flush=True)


def progress_text(what: str, done_bytes: int, total_bytes: int, elapsed_s: float) -> str:
    """Return the line; messages are smaller than their files, or larger than compressed ones."""
    rate = done_bytes / max(elapsed_s, 1e-9)
    shown_bytes = min(done_bytes, total_bytes)
    left_s = (total_bytes - shown_bytes) / rate if rate else 0.0
    percent = 100 * shown_bytes / max(total_bytes, 1)
    minutes, seconds = divmod(round(left_s), 60)
    return (
        f'{what} {percent:.0f} %  {shown_bytes / 1e9:.2f} of {total_bytes / 1e9:.2f} GB  '
        f'{rate / 1e6:.0f} MB/s  {minutes}:{seconds:02d} left'
    )
