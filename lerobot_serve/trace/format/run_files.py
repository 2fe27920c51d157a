"""
How the files of a run are called: NAME.jsonl, then NAME.1.jsonl, NAME.2.jsonl, ...

NAME holds no dot, so that no run's name looks like a part of another's. Pure but for looking into
folders; any thread.
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
    """Return a name for one run of a node: its own and when it began (UTC)."""
    when = datetime.fromtimestamp(wall_s, timezone.utc)
    return f'{file_name(node.strip("/"))}-{when:%Y%m%dT%H%M%SZ}'


def part_name(stem: str, number: int) -> str:
    """Return the name of a file."""
    return f'{stem}.{number}.jsonl' if number else f'{stem}.jsonl'


def candidate_stems(name: str) -> Iterator[str]:
    """Return what the files of a run may be called: the name made safe, then with a number."""
    safe = file_name(name).replace('.', '_')
    yield safe
    for number in count(2):
        yield f'{safe}-{number}'


def free_stem(name: str, there: Iterable[str]) -> str:
    """Return the first stem of which nothing is among the file names that are there."""
    taken = {match['stem'] for match in map(PART.fullmatch, there) if match}
    return next(stem for stem in candidate_stems(name) if stem not in taken)


def parts_of(path: Path) -> list[Path]:
    """
    Return the files of the run that a file belongs to, oldest first; empty when there is none.

    The file itself may be gone: the oldest parts of a long run are removed.
    """
    asked = PART.fullmatch(path.name)
    if not asked:
        return [path] if path.is_file() else []
    found = {}
    for file in path.parent.glob('*.jsonl'):
        match = PART.fullmatch(file.name)
        if match and match['stem'] == asked['stem'] and file.is_file():
            found[int(match['number'] or 0)] = file
    return [file for _, file in sorted(found.items())]
