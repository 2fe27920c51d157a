# SPDX-License-Identifier: Apache-2.0
"""One run of a node: where reading stands, and what its header says. Plain; one thread."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from lerobot_serve.tools.audit.command_bounds import CommandBounds, read_bounds
from lerobot_serve.tools.traces.fields import integer, Record, table, text
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve.trace.format.run_files import parts_of


class LinePosition(NamedTuple):
    """A line of a file."""

    file: str
    line: int


class TraceRun:
    """
    See the module. While `read` is gone through, `place` is the line that it handed out last.

    parameters  those of the node now: the header's, and what changed since
    is_partial  its oldest parts are gone
    is_damaged  something that was written cannot be read, or was never written

    A bag (bags/as_trace.py) is no trace: `slack_ns` is how far its times may be out of order.
    """

    is_trace = True
    slack_ns = 0
    no_age_reason = 'the header has no max_action_age_s'

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number
        self.node = self.role = ''
        self.parameters: Record = {}
        self.bounds: CommandBounds | None = None
        self.no_bounds_reason = 'the header names no limits'
        self.is_partial = self.is_damaged = False
        self.place = LinePosition(str(path), 0)
        # of the part before the present one
        self.previous_part_position: LinePosition | None = None
        self.lines = 0
        self._is_headed = False
        self._offset_s = self._time_s = 0.0

    @property
    def is_complete(self) -> bool:
        return not (self.is_partial or self.is_damaged)

    def read(self) -> Iterator[tuple[float, TraceRun, Record]]:
        """
        Hand out the records with about when they were written (seconds since 1970 by the clock of
        the node's machine, never falling). Raises TraceError.
        """
        left = iter([part for part in parts_of(self.path) if part.stat().st_size])
        file = str(self.path)
        for line, record in read_records(self.path):
            if line == 1:
                self.previous_part_position = self.place if self.lines else None
                file = str(next(left, self.path))
            self.place = LinePosition(file, line)
            self.lines += 1
            kind = record['kind']
            if kind == 'header' and not self._is_headed:
                self._head(record)
            elif kind == 'parameter':
                self.parameters[text(record, 'name')] = record.get('new')
            yield self._time(record), self, record

    def _head(self, header: Record) -> None:
        self._is_headed = True
        self.node, self.role = text(header, 'node'), text(header, 'role')
        self.parameters = dict(table(header, 'parameters'))
        self.is_partial = integer(header, 'part') != 0
        self._offset_s = wall_offset_s(header)
        if 'limits' in self.parameters:
            try:
                self.bounds, self.no_bounds_reason = read_bounds(self.parameters['limits']), ''
            except ValueError as error:
                self.no_bounds_reason = str(error)

    def _time(self, record: Record) -> float:
        mono_ns = integer(record, 'mono_ns')
        if mono_ns is not None and abs(mono_ns) < 1 << 63:
            self._time_s = max(self._time_s, self._offset_s + mono_ns / 1e9)
        return self._time_s


def wall_offset_s(header: Record) -> float:
    """Return what to add to the node's own clock, 0 when the header does not have it."""
    mono_ns = integer(header, 'mono_ns')
    try:
        when = datetime.fromisoformat(text(header, 'wall_time').replace('Z', '+00:00'))
        return when.timestamp() - mono_ns / 1e9
    except (ValueError, TypeError, OverflowError):
        return 0.0
