# SPDX-License-Identifier: Apache-2.0
"""
The entry to traces: all records of several runs, run by run or in the order of time.

Clocks of two machines are not compared to judge anything: they decide only in which order files
are read, so that records that belong together come at about the same time. One thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from lerobot_serve.tools.traces.reader import LineReader, ReportBytes
from lerobot_serve.tools.traces.runs import find_runs
from lerobot_serve.tools.traces.trace_run import Entry, TraceRun

# more runs than a source can have; the runs of source N are numbered from N times this
RUNS_OF_SOURCE = 1 << 32


class RecordSource(Protocol):
    """Records of several runs in one, such as a bag; `runs` is complete after reading."""

    runs: list[TraceRun]

    def read(self, first_number: int = 0) -> Iterator[Entry]:
        """Yield all records in time order; runs are numbered from `first_number`."""


class TraceQuery:
    """
    Runs below paths, and further sources. Reading raises TraceError, and what a source raises.

    with_actions   False leaves the values of actions out of commands: three times as fast
    on_bytes_read  is called with the number of bytes as files are read
    """

    def __init__(
        self,
        paths: Iterable[Path | str],
        *,
        sources: Sequence[RecordSource] = (),
        with_actions: bool = True,
        on_bytes_read: ReportBytes | None = None,
    ) -> None:
        """Raises TraceError."""
        reader = LineReader(with_actions=with_actions, on_bytes_read=on_bytes_read)
        self._files = [
            TraceRun(path, number, reader) for number, path in enumerate(find_runs(paths))
        ]
        self._sources = tuple(sources)

    @property
    def runs(self) -> list[TraceRun]:
        """All runs: of the paths, and of the sources as far as they were read."""
        return [*self._files, *(run for source in self._sources for run in source.runs)]

    def by_run(self) -> Iterator[Entry]:
        """Yield one file after the other, then the sources."""
        for run in self._files:
            yield from run.read()
        for records in self._read_sources():
            yield from records

    def by_time(self) -> Iterator[Entry]:
        """Yield the records of all runs about in the order of time; all files are open at once."""
        streams = [*(run.read() for run in self._files), *self._read_sources()]
        for _, entry in merge(*map(_rising, streams), key=itemgetter(0)):
            yield entry

    def _read_sources(self) -> Iterator[Iterator[Entry]]:
        for number, source in enumerate(self._sources, 1):
            yield source.read(number * RUNS_OF_SOURCE)


def _rising(entries: Iterator[Entry]) -> Iterator[tuple[float, Entry]]:
    """Yield entries with the latest time so far: a run is not sorted, only merged."""
    latest_s = float('-inf')
    for entry in entries:
        latest_s = max(latest_s, entry.time_s)
        yield latest_s, entry
