# SPDX-License-Identifier: Apache-2.0
"""One run of a node: its records, the contents of its header, the reading position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from lerobot_serve.tools.traces.reader import LineReader
from lerobot_serve.trace.format.records import (
    ClockRecord,
    DamagedRecord,
    FooterRecord,
    HeaderRecord,
    ParameterRecord,
    Record,
    TraceRecord,
)

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
    See the module; one thread. `read` may be called again and restarts. Meanwhile `position` is
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
