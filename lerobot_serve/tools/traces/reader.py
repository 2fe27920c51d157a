# SPDX-License-Identifier: Apache-2.0
"""
Reads the lines of one run: all its parts in order, one record after the other, in constant memory.

An invalid line becomes a record of the kind `damaged`, which most tools skip. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lerobot_serve.tools.traces.fields import read_record
from lerobot_serve.trace.format.encoding import decode
from lerobot_serve.trace.format.records import (
    DamagedRecord,
    fields_of,
    HeaderRecord,
    Record,
    TraceRecord,
)
from lerobot_serve.trace.format.run_files import (
    later_parts,
    LINE_LIMIT,
    parts_of,
    SCHEMA_VERSION,
    TraceError,
)

SHOWN_BYTES = 200
# step of progress reports
REPORTED_BYTES = 1 << 18
HEAD = '{"kind":"header"'
EXECUTED = b'{"kind":"executed"'
ACTIONS = (b',"raw":[', b',"commanded":[')

# receives the number of bytes read since the last call
ReportBytes = Callable[[int], None]


class TraceLine(NamedTuple):
    """One line of a part; lines are counted from 1, the header. One too long has its begin."""

    part: Path
    number: int
    size_bytes: int
    content: bytes
    record: TraceRecord


@dataclass(frozen=True, slots=True)
class LineReader:
    """
    Settings for reading runs.

    with_actions   False: commands lack `raw` and `commanded`, which are most of a trace
                   and of the time to decode it
    on_bytes_read  called while files are read
    """

    with_actions: bool = True
    on_bytes_read: ReportBytes | None = None

    def read(self, path: Path, known: Sequence[Path] = ()) -> Iterator[TraceLine]:
        """
        Yield the lines of the run of a file; its `known` parts save a listing of the folder.
        Raises TraceError.
        """
        # a running node may have removed all of them
        parts = known if known and known[-1].is_file() else parts_of(path)
        lines = self._read_parts([*parts, *(later_parts(parts[-1]) if parts else ())])
        return _reporting(lines, self.on_bytes_read) if self.on_bytes_read else lines

    def _read_parts(self, parts: list[Path]) -> Iterator[TraceLine]:
        for part in parts:
            try:
                with open(part, 'rb') as file:
                    yield from self._read_part(file, part, is_first=part == parts[0])
            except FileNotFoundError:
                # the running node has removed its oldest part
                continue
            except OSError as error:
                raise TraceError(f'{part} cannot be read: {error.strerror or error}') from error

    def _read_part(self, file: BinaryIO, part: Path, *, is_first: bool) -> Iterator[TraceLine]:
        with_actions = self.with_actions
        for number, line in enumerate(iter(partial(file.readline, LINE_LIMIT), b''), 1):
            size = len(line)
            if size == LINE_LIMIT and not line.endswith(b'\n'):
                size += skip_line(file)
                yield TraceLine(part, number, size, line, damaged_record(part, 'too_long', line))
                continue
            try:
                record = read_record(line if with_actions else strip_actions(line))
            except ValueError:
                reason = 'no_record' if line.endswith(b'\n') else 'torn'
                record = damaged_record(part, reason, line)
            if number == 1:
                check_header(record, part, is_first)
            yield TraceLine(part, number, size, line, record)


def _reporting(lines: Iterator[TraceLine], on_bytes_read: ReportBytes) -> Iterator[TraceLine]:
    size_bytes = 0
    for line in lines:
        size_bytes += line.size_bytes
        if size_bytes >= REPORTED_BYTES:
            on_bytes_read(size_bytes)
            size_bytes = 0
        yield line
    on_bytes_read(size_bytes)


def read_records(path: Path | str) -> Iterator[tuple[int, Record]]:
    """
    Yield number and content of each line of the run of a file, also of unknown kinds.

    An invalid line is {'kind': 'damaged', 'file', 'reason', 'text'} with the reason torn (the last
    line of a part whose process was killed), no_record or too_long. Raises TraceError, also while
    reading.
    """
    path = Path(path)
    if not parts_of(path):
        raise TraceError(f'{path} is not a trace; name a file NAME.jsonl of a node')
    return ((line.number, _content(line)) for line in LineReader().read(path))


def _content(line: TraceLine) -> Record:
    is_damaged = isinstance(line.record, DamagedRecord)
    return fields_of(line.record) if is_damaged else decode(line.content)


def strip_actions(line: bytes) -> bytes:
    """
    Return a line without the numbers of actions.

    The search relies on JSON: the matched quotes begin a name and cannot occur within a text.
    """
    if not line.startswith(EXECUTED):
        return line
    for name in ACTIONS:
        begin = line.find(name)
        end = line.find(b']', begin)
        if 0 <= begin < end:
            line = line[:begin] + line[end + 1 :]
    return line


def skip_line(file: BinaryIO) -> int:
    """Skip to the next line; return the number of skipped bytes."""
    skipped = 0
    while rest := file.readline(LINE_LIMIT):
        skipped += len(rest)
        if rest.endswith(b'\n'):
            break
    return skipped


def damaged_record(part: Path, reason: str, line: bytes) -> DamagedRecord:
    """Return the record for an invalid line."""
    text = line[:SHOWN_BYTES].decode(errors='replace')
    return DamagedRecord(file=part.name, reason=reason, text=text)


def check_header(record: TraceRecord, part: Path, is_first: bool) -> None:
    """
    Raise TraceError for a file that is not a trace or has another version.

    A damaged header is accepted if an earlier part has one, or if the process was killed while
    writing it.
    """
    is_torn = (
        isinstance(record, DamagedRecord)
        and record.reason == 'torn'
        and HEAD.startswith(record.text[: len(HEAD)])
    )
    if isinstance(record, HeaderRecord):
        version = record.schema_version
        if type(version) is not int:
            raise TraceError(f'{part}: schema_version must be a number, got {version!r}')
        if version != SCHEMA_VERSION:
            raise TraceError(
                f'{part} has schema version {version}, this program reads '
                f'{SCHEMA_VERSION}; read it with the version of lerobot_serve that wrote it: '
                f'{record.version}'
            )
    elif is_first and not is_torn:
        raise TraceError(f'{part} is not a trace: it does not begin with a header')
