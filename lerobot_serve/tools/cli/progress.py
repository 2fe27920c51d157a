"""
How far long work is, on a terminal only and on standard error, so that output stays what it is.

The main thread; a thread of rich draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
from contextvars import ContextVar
import io
from pathlib import Path
import sys
from typing import BinaryIO, TypeVar

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

from lerobot_serve.tools.traces import reader

# less is read before anybody looks
SHOW_ABOVE_BYTES = 20_000_000
BUFFER_BYTES = 1 << 18
T = TypeVar('T')


@contextlib.contextmanager
def show_reading(paths: Iterable[Path | str]) -> Iterator[None]:
    """Show how much of the traces below `paths` was read, as long as the block runs."""
    total = sum(file.stat().st_size for path in paths for file in trace_files(Path(path)))
    if total < SHOW_ABOVE_BYTES or not sys.stderr.isatty():
        yield
        return
    with progress_bar(DownloadColumn()) as progress:
        task = progress.add_task('reading', total=total)

        def opened(part: Path) -> BinaryIO:
            return io.BufferedReader(CountingFile(part, progress, task), BUFFER_BYTES)

        with context_value(reader.OPEN_PART, opened):
            yield


def show_count(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Hand out the items and show how many of `total` were."""
    if not sys.stderr.isatty():
        yield from items
        return
    with progress_bar(MofNCompleteColumn()) as progress:
        yield from progress.track(items, total=total, description=what)


@contextlib.contextmanager
def show_spinner(what: str) -> Iterator[None]:
    """Show that something goes on whose end nobody knows."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what):
        yield


class CountingFile(io.FileIO):
    """A file that tells how much was read of it."""

    def __init__(self, path: Path, progress: Progress, task: int) -> None:
        super().__init__(path)
        self._progress, self._task = progress, task

    def readinto(self, buffer: memoryview) -> int | None:
        count = super().readinto(buffer)
        self._progress.update(self._task, advance=count or 0)
        return count


def trace_files(path: Path) -> list[Path]:
    """Return the files of traces that a path means."""
    if path.is_dir():
        return [file for file in path.rglob('*.jsonl') if file.is_file()]
    return [path] if path.suffix == '.jsonl' and path.is_file() else []


def progress_bar(count: ProgressColumn) -> Progress:
    """Return a bar that is gone when it is over."""
    return Progress(
        TextColumn('{task.description}'),
        BarColumn(),
        count,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@contextlib.contextmanager
def context_value(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
