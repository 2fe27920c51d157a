# SPDX-License-Identifier: Apache-2.0
"""Reads a file of Rerun with Rerun's own reader, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
import warnings

import rerun as rr
from rerun.chunk import RrdReader


class Row(NamedTuple):
    """One row of an entity: its times by timeline [ns, or a number], its components by name."""

    times: dict[str, int]
    components: dict[str, Any]


class RrdFile:
    """The rows of the one recording of a file, by entity."""

    def __init__(self, path: Path) -> None:
        with warnings.catch_warnings():
            # a file of a live view has no index
            warnings.filterwarnings('ignore', message='RRD file has no footer')
            self._reader = RrdReader(path)
        (recording,) = self._reader.recordings()
        self.application = recording.application_id
        self.rows: dict[str, list[Row]] = {}
        self.static: dict[str, list[Row]] = {}
        for chunk in self._reader.stream(store=recording):
            where = self.static if chunk.is_static else self.rows
            where.setdefault(chunk.entity_path, []).extend(rows_of(chunk))

    @property
    def timelines(self) -> set[str]:
        return {name for rows in self.rows.values() for row in rows for name in row.times}

    def at(self, *path: str) -> list[Row]:
        """Return the rows of an entity that are not static, by time."""
        rows = self.rows.get(rr.new_entity_path(list(path)), [])
        return sorted(rows, key=lambda row: row.times.get('time', 0))

    def values(self, *path: str) -> list[Any]:
        """Return the one component of an entity, row by row."""
        return [next(iter(row.components.values()))[0] for row in self.at(*path)]

    def origins(self) -> set[str]:
        """Return the entities at which the views of the last blueprint begin."""
        return self._of_views('space_origin')

    def contents(self) -> set[str]:
        """Return the expressions of entities that the views of the last blueprint show."""
        return self._of_views('ViewContents:query')

    def _of_views(self, component: str) -> set[str]:
        *_, last = self._reader.blueprints()
        return {
            value
            for chunk in self._reader.stream(store=last)
            for row in rows_of(chunk)
            for name, values in row.components.items()
            if name.endswith(component)
            for value in values
        }


def rows_of(chunk: Any) -> list[Row]:
    batch = chunk.to_record_batch()
    kinds = {field.name: (field.metadata or {}).get(b'rerun:kind') for field in batch.schema}
    columns = {name: batch.column(name) for name in kinds}
    rows = []
    for number in range(batch.num_rows):
        times = {
            name: _number(columns[name][number])
            for name, kind in kinds.items()
            if kind == b'index'
        }
        components = {
            name: columns[name][number].as_py() for name, kind in kinds.items() if kind == b'data'
        }
        rows.append(Row(times, {n: value for n, value in components.items() if value is not None}))
    return rows


def _number(value: Any) -> int:
    return int(value.value) if hasattr(value, 'value') else int(value.as_py())
