# SPDX-License-Identifier: Apache-2.0
"""
One run of a node (its records, the contents of its header, the reading position), and all records
of several runs, run by run or in time order. One thread.

Clocks of two machines only determine the order in which files are read, so that related records
are read at about the same time; no check compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Protocol

from lerobot_serve.tools.traces.reader import LineReader, ReportBytes
from lerobot_serve.trace.format.records import (
    ClockRecord,
    DamagedRecord,
    FooterRecord,
    HeaderRecord,
    ParameterRecord,
    Record,
    TraceRecord,
)
from lerobot_serve.trace.format.run_files import first_part, group_parts, TraceError

# a clock value beyond it means damage
NS_LIMIT = 1 << 63
ALL_ACTIONS = LineReader()
# records about the trace itself
OWN_RECORDS = (HeaderRecord, ClockRecord, ParameterRecord, FooterRecord, DamagedRecord)


class LinePosition(NamedTuple):
    """A line of a file."""

    file: str
    line: int


class TraceEntry(NamedTuple):
    """
    A record of a run and its approximate time, in seconds since 1970 by the clock of the node's
    machine. A record without a time has the time of the previous one.
    """

    time_s: float
    run: TraceRun
    record: TraceRecord


class TraceRun:
    """
    One run of a node; one thread. `read` may be called again and restarts. Meanwhile `position` is
    the line of the last record.

    header_parameters  those of the header
    parameters         those of the node now: the header's, and what changed since
    lines, size_bytes  read by now
    is_partial         its oldest parts were removed
    is_damaged         set by the audit and by bags: records cannot be read, or were never written
    is_lossy           lines are damaged, or a footer counts lost records
    is_ended           the last part has a footer that closes the run

    For a bag (bags/trace_view.py) `slack_ns` is the maximum disorder of its times.
    """

    is_trace = True
    slack_ns = 0
    no_age_reason = 'the header has no max_action_age_s'
    no_limits_reason = 'the header names no limits'

    def __init__(
        self,
        path: Path,
        number: int,
        reader: LineReader = ALL_ACTIONS,
        parts: Sequence[Path] = (),
    ) -> None:
        """`parts` are those of the run of `path` that are known; without any they are listed."""
        self.path, self.number = path, number
        self._reader, self._known_parts = reader, parts
        self.is_damaged = False
        self._restart()

    def _restart(self) -> None:
        self.node = self.role = ''
        self.header_parameters: Record = {}
        self.parameters: Record = {}
        self.is_partial = self.is_lossy = self.is_ended = False
        self._part, self._line = self.path, 0
        # of the previous part
        self.previous_part_position: LinePosition | None = None
        self.lines = self.size_bytes = 0
        self._is_headed = False
        self._offset_s = self._time_s = 0.0

    @property
    def position(self) -> LinePosition:
        """The line of the last record."""
        return LinePosition(str(self._part), self._line)

    @property
    def is_complete(self) -> bool:
        return not (self.is_partial or self.is_damaged)

    def read(self) -> Iterator[TraceEntry]:
        """Yield all records in the order of the file. Raises TraceError."""
        self._restart()
        for line in self._reader.read(self.path, self._known_parts):
            if line.number == 1:
                self.previous_part_position = self.position if self.lines else None
            self._part, self._line = line.part, line.number
            self.lines += 1
            self.size_bytes += line.size_bytes
            record = line.record
            if isinstance(record, OWN_RECORDS):
                self._apply(record)
            mono_ns = record.mono_ns
            if mono_ns is not None and -NS_LIMIT < mono_ns < NS_LIMIT:
                self._time_s = self._offset_s + mono_ns / 1e9
            yield TraceEntry(self._time_s, self, record)

    def _apply(self, record: TraceRecord) -> None:
        if isinstance(record, (HeaderRecord, ClockRecord)):
            self._offset_s = wall_offset_s(record, self._offset_s)
        if isinstance(record, HeaderRecord):
            if not self._is_headed:
                self._head(record)
        elif isinstance(record, ParameterRecord):
            self.parameters[record.name] = record.new
        elif isinstance(record, FooterRecord):
            self.is_lossy |= bool(record.records_lost)
            self.is_ended = record.end_reason == 'closed'
        elif isinstance(record, DamagedRecord):
            self.is_lossy = True

    def _head(self, header: HeaderRecord) -> None:
        self._is_headed = True
        self.node, self.role = header.node, header.role
        self.header_parameters = header.parameters
        self.parameters = dict(header.parameters)
        self.is_partial = header.part != 0


def wall_offset_s(record: HeaderRecord | ClockRecord, before_s: float) -> float:
    """Return the offset from the node's clock to 1970, that of before if the record lacks it."""
    mono_ns = record.mono_ns
    if mono_ns is None:
        return before_s
    try:
        when = datetime.fromisoformat(record.wall_time.replace('Z', '+00:00'))
        return when.timestamp() - mono_ns / 1e9
    except (ValueError, OverflowError):
        return before_s


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
