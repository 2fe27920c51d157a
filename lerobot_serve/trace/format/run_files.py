# SPDX-License-Identifier: Apache-2.0
"""
Version and limits of the trace format.

Evolution is additive: readers ignore unknown kinds and fields. The version rises only when an
existing field changes its meaning.

Name the files of a run: NAME.jsonl, then NAME.1.jsonl, NAME.2.jsonl, ...

NAME contains no dot, so that no run name matches a part of another run. Pure except for folder
listings; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import count, takewhile
from pathlib import Path
import re

from lerobot_serve.contract.names import file_name
from lerobot_serve.errors import UserError

SCHEMA_VERSION = 2
ROLES = ('edge', 'router', 'server')
# enough for two cameras with five raw 480x640 frames each, in base64
LINE_LIMIT = 16 << 20
# smaller parts contain little besides their headers
PART_LIMIT_MIN = 4096


class TraceError(UserError, ValueError):
    """A file that cannot be read as a trace; the text has path, reason and remedy."""


PART = re.compile(r'(?P<stem>[^.]+)(?:\.(?P<number>[1-9][0-9]*))?\.jsonl')


def run_name(node: str, wall_s: float) -> str:
    """Return the name of one run of a node: node name and start time (UTC)."""
    when = datetime.fromtimestamp(wall_s, timezone.utc)
    return f'{file_name(node.strip("/"))}-{when:%Y%m%dT%H%M%SZ}'


def part_name(stem: str, number: int) -> str:
    """Return the name of a part file."""
    return f'{stem}.{number}.jsonl' if number else f'{stem}.jsonl'


def candidate_stems(name: str) -> Iterator[str]:
    """Yield candidate stems of a run: the safe name, then with a number."""
    safe = file_name(name).replace('.', '_')
    yield safe
    for number in count(2):
        yield f'{safe}-{number}'


def free_stem(name: str, existing: Iterable[str]) -> str:
    """Return the first stem without a file among the existing names."""
    taken = {match['stem'] for match in map(PART.fullmatch, existing) if match}
    return next(stem for stem in candidate_stems(name) if stem not in taken)


def parts_of(path: Path) -> list[Path]:
    """
    Return all files of the run of a file, oldest first; empty without files.

    The file itself may be missing, since the oldest parts of a long run are removed.
    """
    first = first_part(path)
    siblings = (file for file in path.parent.glob('*.jsonl') if first_part(file) == first)
    return group_parts({path, *siblings}).get(first, [])


def group_parts(files: Iterable[Path]) -> dict[Path, list[Path]]:
    """Return those of the files that are there by the name of the first part, oldest first."""
    runs: dict[Path, list[Path]] = {}
    for file in files:
        if file.is_file():
            runs.setdefault(first_part(file), []).append(file)
    return {first: sorted(parts, key=_part_number) for first, parts in runs.items()}


def first_part(file: Path) -> Path:
    """Return the name of the first part of the run of a file; it may have been removed."""
    match = PART.fullmatch(file.name)
    return file.with_name(part_name(match['stem'], 0)) if match else file


def later_parts(part: Path) -> Iterator[Path]:
    """Yield the parts behind the last known one, which the node has begun since."""
    match = PART.fullmatch(part.name)
    if not match:
        return
    names = (part_name(match['stem'], number) for number in count(_part_number(part) + 1))
    yield from takewhile(Path.is_file, map(part.with_name, names))


def _part_number(file: Path) -> int:
    match = PART.fullmatch(file.name)
    return int(match['number'] or 0) if match else 0
