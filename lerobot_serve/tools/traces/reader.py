# SPDX-License-Identifier: Apache-2.0
"""
Reads a trace: all parts of a run in order, one record after the other, in constant memory.

A line that makes no sense is handed on as a record of the kind `damaged`, so that who counts them
can, and who only looks for some kinds skips it with all others. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from lerobot_serve.trace.format.encoding import decode
from lerobot_serve.trace.format.run_files import parts_of
from lerobot_serve.trace.format.schema import LINE_LIMIT, SCHEMA_VERSION, TraceError

SHOWN_BYTES = 200
HEAD = '{"kind":"header"'


def open_part(part: Path) -> BinaryIO:
    """Return a part to be read. Raises OSError."""
    return open(part, 'rb')


# who wants to know how far reading is opens the files by itself
OPEN_PART: ContextVar[Callable[[Path], BinaryIO]] = ContextVar('OPEN', default=open_part)


def read_records(path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Return number and content of each line of the run to which the file belongs.

    Lines are counted from 1 in each part, whose first is its header. A line of no sense is
    {'kind': 'damaged', 'file', 'reason', 'text'} with the reason torn (the last line of a part,
    when the process was killed), no_record or too_long. Raises TraceError, also while reading.
    """
    parts = parts_of(Path(path))
    if not parts:
        raise TraceError(f'there is no trace {path}; name a file NAME.jsonl that a node wrote')
    return _read_parts(parts)


def _read_parts(parts: list[Path]) -> Iterator[tuple[int, dict[str, Any]]]:
    for part in parts:
        try:
            with OPEN_PART.get()(part) as file:
                yield from _read_part(file, part, is_first=part == parts[0])
        except FileNotFoundError:
            # the running node has removed its oldest part
            continue
        except OSError as error:
            raise TraceError(f'{part} cannot be read: {error.strerror or error}') from error


def _read_part(
    file: BinaryIO, part: Path, *, is_first: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(iter(partial(file.readline, LINE_LIMIT), b''), 1):
        is_whole = line.endswith(b'\n')
        if not is_whole and len(line) == LINE_LIMIT:
            skip_line(file)
            yield number, damaged_record(part, 'too_long', line)
            continue
        try:
            record = decode(line)
        except ValueError:
            record = damaged_record(part, 'no_record' if is_whole else 'torn', line)
        if number == 1:
            check_header(record, part, is_first)
        yield number, record


def skip_line(file: BinaryIO) -> None:
    """Go to where the next line begins."""
    while (rest := file.readline(LINE_LIMIT)) and not rest.endswith(b'\n'):
        pass


def damaged_record(part: Path, reason: str, line: bytes) -> dict[str, Any]:
    """Return what stands for a line that makes no sense."""
    text = line[:SHOWN_BYTES].decode(errors='replace')
    return {'kind': 'damaged', 'file': part.name, 'reason': reason, 'text': text}


def check_header(record: dict[str, Any], part: Path, is_first: bool) -> None:
    """
    Raises TraceError for what is no trace or of a newer version.

    A header that was damaged is borne where another one says what the file is, or where the
    process was killed while it was written.
    """
    is_torn = record.get('reason') == 'torn' and HEAD.startswith(record['text'][: len(HEAD)])
    if record['kind'] == 'header':
        version = record.get('schema_version')
        if type(version) is not int:
            raise TraceError(f'{part}: schema_version must be a number, got {version!r}')
        if version != SCHEMA_VERSION:
            raise TraceError(
                f'{part} has schema version {version}, this program reads '
                f'{SCHEMA_VERSION}; read it with the version of lerobot_serve that wrote it: '
                f'{record.get("version")}'
            )
    elif is_first and not is_torn:
        raise TraceError(f'{part} is no trace: it does not begin with a header')
