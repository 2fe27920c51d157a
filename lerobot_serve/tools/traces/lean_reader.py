# SPDX-License-Identifier: Apache-2.0
"""
Reads the lines of a run without action values.

Action values are most of a trace and of the time to decode it. Statistics do not need them, so
they are cut out of the line before decoding. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from lerobot_serve.tools.traces.reader import check_header, damaged_record
from lerobot_serve.trace.format.encoding import decode
from lerobot_serve.trace.format.run_files import parts_of
from lerobot_serve.trace.format.schema import LINE_LIMIT, TraceError

EXECUTED = b'{"kind":"executed"'
ACTIONS = (b',"raw":[', b',"commanded":[')


def read_without_actions(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Hand out size and content of each line of a run; commands come without `raw` and `caged`.

    A line of no sense has the kind `damaged`. Raises TraceError.
    """
    parts = parts_of(path)
    for part in parts:
        try:
            with open(part, 'rb') as file:
                yield from _read_part(file, part, is_first=part == parts[0])
        except FileNotFoundError:
            # the running node has removed its oldest part
            continue
        except OSError as error:
            raise TraceError(f'{part} cannot be read: {error.strerror or error}') from error


def _read_part(
    file: BinaryIO, part: Path, *, is_first: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    is_head = True
    for line in iter(partial(file.readline, LINE_LIMIT), b''):
        try:
            record = decode(strip_actions(line))
        except ValueError:
            is_whole = line.endswith(b'\n')
            record = damaged_record(part, 'no_record' if is_whole else 'torn', line)
        if is_head:
            check_header(record, part, is_first)
            is_head = False
        yield len(line), record


def strip_actions(line: bytes) -> bytes:
    """
    Return a line without the numbers of actions.

    In JSON a quote behind a comma begins a name or a text of its own, never stands within a text.
    """
    if not line.startswith(EXECUTED):
        return line
    for name in ACTIONS:
        begin = line.find(name)
        end = line.find(b']', begin)
        if 0 <= begin < end:
            line = line[:begin] + line[end + 1 :]
    return line
