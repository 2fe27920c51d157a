# SPDX-License-Identifier: Apache-2.0
"""
Shows progress on standard error, and only on a terminal, so that standard output stays unchanged.

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

# less than this is read within a second
SHOW_ABOVE_BYTES = 20_000_000
BUFFER_BYTES = 1 << 18
T = TypeVar('T')


@contextlib.contextmanager
def show_reading(paths: Iterable[Path | str]) -> Iterator[None]:
    """Show how much of the traces below `paths` is read, while the block runs."""
    total = sum(file.stat().st_size for path in paths for file in trace_max_files(Path(path)))
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
    """Yield the items and show how many of `total` were yielded."""
    if not sys.stderr.isatty():
        yield from items
        return
    with progress_bar(MofNCompleteColumn()) as progress:
        yield from progress.track(items, total=total, description=what)


@contextlib.contextmanager
def show_spinner(what: str) -> Iterator[None]:
    """Show that work of unknown length is running."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what):
        yield


class CountingFile(io.FileIO):
    """A file that reports each read to a progress bar."""

    def __init__(self, path: Path, progress: Progress, task: int) -> None:
        super().__init__(path)
        self._progress, self._task = progress, task

    def readinto(self, buffer: memoryview) -> int | None:
        count = super().readinto(buffer)
        self._progress.update(self._task, advance=count or 0)
        return count


def trace_max_files(path: Path) -> list[Path]:
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


@contextlib.contextmanager
def context_value(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
