# SPDX-License-Identifier: Apache-2.0
"""
Name the files of a run: NAME.jsonl, then NAME.1.jsonl, NAME.2.jsonl, ...

NAME contains no dot, so that no run name matches a part of another run. Pure except for folder
listings; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
import re

from lerobot_serve.wire.names import file_name

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
    given = PART.fullmatch(path.name)
    if not given:
        return [path] if path.is_file() else []
    found = {}
    for file in path.parent.glob('*.jsonl'):
        match = PART.fullmatch(file.name)
        if match and match['stem'] == given['stem'] and file.is_file():
            found[int(match['number'] or 0)] = file
    return [file for _, file in sorted(found.items())]
