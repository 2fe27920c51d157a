# SPDX-License-Identifier: Apache-2.0
"""A trace writer with what it told, clocks that are set by hand, and disks that fail."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
import os
from pathlib import Path
from typing import Any

from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import HeaderRecord, RecordIds
from lerobot_serve.trace.writing import rotating_file
from lerobot_serve.trace.writing.writer import TraceWriter

POLICIES = [records.policy('a', 'reach@f0ed'), records.policy('b', 'reach@0b57')]
WALL_S = 1_750_000_000.25
IDS = RecordIds('robot_1', 77, 12, 'episode-1')


def header(**changed: Any) -> HeaderRecord:
    values = {
        'node': '/edge_controller',
        'role': 'edge',
        'version': '0.1.0',
        'wall_s': WALL_S,
        'now_ns': 5_000,
        'policies': POLICIES,
        'parameters': {'fps': 30.0, 'servers': ('/policy_router',)},
    }
    return records.header(**values | changed)


class Trace:
    """See the module."""

    def __init__(self, folder: Path, name: str = 'edge', **limits: int) -> None:
        self.folder, self.told, self.now_ns = folder, [], 0
        # the time of day at which the clock was 0
        self.began_s = WALL_S
        self.writer = TraceWriter(
            folder,
            name,
            header(),
            log_warning=self.told.append,
            clock=lambda: self.now_ns,
            wall=lambda: self.began_s + self.now_ns / 1e9,
            **{'limit_bytes': 1 << 20, 'keep_files': 8} | limits,
        )

    def note(self, *names: str) -> None:
        """Write an incident for each name, down to the disk."""
        for name in names:
            self.writer.write(records.IncidentRecord(self.now_ns, name=name))
        self.writer.drain()

    def files(self) -> list[Path]:
        return sorted(self.folder.glob('*.jsonl'))

    def read(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the records, of some kinds or of all."""
        found = (record for _, record in read_records(self.writer.path))
        return [record for record in found if not kinds or record['kind'] in kinds]

    def names(self) -> list[str]:
        return [record['name'] for record in self.read('incident')]


def strict(line: bytes | str) -> dict[str, Any]:
    """Return what a line of strict JSON says."""
    return json.loads(line, parse_constant=refuse)


def refuse(word: str) -> None:
    raise AssertionError(f'{word} is not JSON')


@contextlib.contextmanager
def full_disk(monkeypatch: Any) -> Iterator[None]:
    """Let every new file be /dev/full."""
    with monkeypatch.context() as patch:
        patch.setattr(rotating_file, 'NEW_FILE', os.O_WRONLY | os.O_APPEND)
        patch.setattr(rotating_file, 'part_name', lambda *_: '/dev/full')
        # the one that is removed where a header did not fit
        patch.setattr(Path, 'unlink', lambda _: None)
        yield


def fill(writer: TraceWriter) -> None:
    """Let the disk under the present file be full."""
    full = os.open('/dev/full', os.O_WRONLY | os.O_APPEND)
    os.dup2(full, writer._output._file)
    os.close(full)
