# SPDX-License-Identifier: Apache-2.0
"""
Shows progress on standard error, so that standard output stays unchanged: bars on a terminal only.

The main thread; rich draws in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
from pathlib import Path
import sys
import time
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from lerobot_serve.tools.traces.reader import ReportBytes
from lerobot_serve.versions.file_hash import CountBytes

# fewer bytes are read within a second
SHOW_ABOVE_BYTES = 20_000_000
T = TypeVar('T')
TERMINAL_PERIOD_S, FILE_PERIOD_S = 0.5, 30.0
CLEAR_LINE = '\r\x1b[K'


@contextlib.contextmanager
def show_reading(paths: Iterable[Path | str]) -> Iterator[ReportBytes | None]:
    """
    Show how much of the traces below `paths` has been read while the block runs. Yield a function
    that receives the number of bytes read, None if nothing is shown.
    """
    total = sum(file.stat().st_size for path in paths for file in trace_files(Path(path)))
    if total < SHOW_ABOVE_BYTES or not sys.stderr.isatty():
        yield None
        return
    with progress_bar(DownloadColumn()) as progress:
        task = progress.add_task('reading', total=total)
        yield lambda count: progress.update(task, advance=count)


def show_count(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield the items and show their count out of `total`."""
    if not sys.stderr.isatty():
        yield from items
        return
    with progress_bar(MofNCompleteColumn()) as progress:
        yield from progress.track(items, total=total, description=what)


@contextlib.contextmanager
def show_spinner(what: str) -> Iterator[None]:
    """Show that work of unknown duration is in progress."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what):
        yield


def trace_files(path: Path) -> list[Path]:
    """Return the trace files of a path."""
    if path.is_dir():
        return [file for file in path.rglob('*.jsonl') if file.is_file()]
    return [path] if path.suffix == '.jsonl' and path.is_file() else []


def progress_bar(count: ProgressColumn) -> Progress:
    """Return a bar that disappears at its end."""
    return Progress(
        TextColumn('{task.description}'),
        BarColumn(),
        count,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class TerminalProgress:
    """
    Rate and time left of long work, which begins with `begin` and shows nothing of less than
    `least_bytes`: on a terminal one line that is rewritten, elsewhere a line every half minute.
    A context manager, which ends that line.
    """

    def __init__(self, least_bytes: int = 0) -> None:
        self._least_bytes = least_bytes
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
            if total_bytes >= self._least_bytes and now_s - shown_s >= self._period_s:
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

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(self, *_: object) -> None:
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
