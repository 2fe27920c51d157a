# SPDX-License-Identifier: Apache-2.0
"""
Shows progress on standard error, and only on a terminal, so that standard output stays unchanged.

The main thread; rich draws in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
from pathlib import Path
import sys
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

# fewer bytes are read within a second
SHOW_ABOVE_BYTES = 20_000_000
T = TypeVar('T')


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
