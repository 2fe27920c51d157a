# SPDX-License-Identifier: Apache-2.0
"""Reads one run without action values, with the time of each record. One thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from lerobot_serve.tools.traces.fields import integer, Record, table, text
from lerobot_serve.tools.traces.lean_reader import read_without_actions
from lerobot_serve.tools.traces.runs import find_runs
from lerobot_serve.tools.traces.trace_run import wall_offset_s


class Source:
    """
    See the module. The fields are complete after `read`.

    parameters  those of the header
    lines       of the run
    is_lossy    lines are damaged, or the footer counts lost records
    is_ended    the last part has a footer
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node = self.role = ''
        self.parameters: Record = {}
        self.lines = 0
        self.is_lossy = self.is_ended = False
        self._offset_s = 0.0
        self._is_headed = False

    def read(self) -> Iterator[tuple[float, Record]]:
        """
        Yield all records with their times (seconds since 1970 by the clock of the node's machine);
        a record without a time has that of the one before. Raises TraceError.
        """
        self.lines = 0
        time_s = 0.0
        for _, record in read_without_actions(self.path):
            self.lines += 1
            self._note(record)
            mono_ns = integer(record, 'mono_ns')
            if mono_ns is not None and abs(mono_ns) < 1 << 63:
                time_s = self._offset_s + mono_ns / 1e9
            yield time_s, record

    def _note(self, record: Record) -> None:
        kind = record['kind']
        if kind == 'header' and not self._is_headed:
            self._is_headed = True
            self.node, self.role = text(record, 'node'), text(record, 'role')
            self.parameters = table(record, 'parameters')
            self._offset_s = wall_offset_s(record)
        elif kind == 'damaged':
            self.is_lossy = True
        elif kind == 'footer':
            self.is_lossy |= bool(table(record, 'records_lost'))
            self.is_ended = text(record, 'end_reason') == 'closed'


def sources(paths: Iterable[Path | str]) -> list[Source]:
    """Return the runs, not yet read. Raises TraceError."""
    return [Source(path) for path in find_runs(paths)]
