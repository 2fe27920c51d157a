# SPDX-License-Identifier: Apache-2.0
"""
Reads all records of several runs, run by run or in time order.

Clocks of two machines only determine the order in which files are read, so that related records
are read at about the same time; no check compares them. One thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from lerobot_serve.tools.traces.reader import LineReader, ReportBytes
from lerobot_serve.tools.traces.trace_run import TraceEntry, TraceRun
from lerobot_serve.trace.format.run_files import first_part, group_parts, TraceError

# exceeds the number of runs of a source; the runs of source N are numbered from N times this
RUNS_OF_SOURCE = 1 << 32


def find_runs(paths: Iterable[Path | str]) -> list[list[Path]]:
    """
    Return the files of each run that is named or in a folder, oldest first. Raises TraceError.
    """
    # each folder is listed once, however many runs and parts it has
    listed = cache(lambda folder: group_parts(folder.glob('*.jsonl')))

    def parts_of(file: Path) -> list[Path]:
        only = [file] if file.is_file() else []
        return listed(file.parent).get(first_part(file), only)

    runs: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        files = sorted(path.rglob('*.jsonl')) if path.is_dir() else [path]
        found = [parts for file in files if (parts := parts_of(file.resolve()))]
        if not found:
            raise TraceError(
                f'{path} is not a trace; name files NAME.jsonl of nodes, or folders '
                'with such files'
            )
        runs |= {parts[0]: parts for parts in found}
    return list(runs.values())


class RecordSource(Protocol):
    """A source of records of several runs, such as a bag; `runs` is complete after reading."""

    runs: list[TraceRun]

    def read(self, first_number: int = 0) -> Iterator[TraceEntry]:
        """Yield all records in time order; runs are numbered from `first_number`."""


class TraceQuery:
    """
    The runs below some paths, and further sources. Reading raises TraceError and errors of
    sources.

    with_actions   False omits the values of actions in commands, which is three times as fast
    on_bytes_read  receives the number of bytes while files are read
    """

    def __init__(
        self,
        paths: Iterable[Path | str],
        *,
        sources: Sequence[RecordSource] = (),
        with_actions: bool = True,
        on_bytes_read: ReportBytes | None = None,
    ) -> None:
        """Find the runs below `paths`. Raises TraceError."""
        reader = LineReader(with_actions=with_actions, on_bytes_read=on_bytes_read)
        self._files = [
            TraceRun(parts[0], number, reader, parts)
            for number, parts in enumerate(find_runs(paths))
        ]
        self._sources = tuple(sources)

    @property
    def runs(self) -> list[TraceRun]:
        """All runs: of the paths, and those found so far in the sources."""
        return [*self._files, *(run for source in self._sources for run in source.runs)]

    def by_run(self) -> Iterator[TraceEntry]:
        """Yield the records file by file, then those of the sources."""
        for run in self._files:
            yield from run.read()
        for records in self._read_sources():
            yield from records

    def by_time(self) -> Iterator[TraceEntry]:
        """
        Yield the records of all runs approximately in time order; all files are open at once.
        """
        streams = [*(run.read() for run in self._files), *self._read_sources()]
        for _, entry in merge(*map(_rising, streams), key=itemgetter(0)):
            yield entry

    def _read_sources(self) -> Iterator[Iterator[TraceEntry]]:
        for number, source in enumerate(self._sources, 1):
            yield source.read(number * RUNS_OF_SOURCE)


def _rising(entries: Iterator[TraceEntry]) -> Iterator[tuple[float, TraceEntry]]:
    """Yield entries with the latest time so far, for a merge that keeps the order within a run."""
    latest_s = float('-inf')
    for entry in entries:
        latest_s = max(latest_s, entry.time_s)
        yield latest_s, entry
