# SPDX-License-Identifier: Apache-2.0
"""
Cache the SHA-256 of a bag's file in bag_hash.json beside it. The cache holds while size and
modification time of the file match; otherwise the file is read again. Any thread.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from msgspec import structs

from lerobot_serve.atomic_file import replacement_of
from lerobot_serve.experience.bag_files import NotAnEpisode, read_object
from lerobot_serve.files.load import load, Record, Refused
from lerobot_serve.versions.file_hash import CountBytes, hash_of, ignore_bytes
from lerobot_serve.versions.manifest import Digest

HASH_FILE = 'bag_hash.json'
NOTE_LIMIT_BYTES = 4096


class BagHash(Record, frozen=True):
    """The hash of a file, and by what one sees that it is still the file."""

    file: str
    size_bytes: int
    mtime_ns: int
    sha256: Digest


def noted_hash(file: Path) -> BagHash | None:
    """Return what the note says; None without one of this file as it is. Raises OSError."""
    state = _state(file)
    try:
        content = read_object(file.parent / HASH_FILE, NOTE_LIMIT_BYTES)
        found = load(BagHash, content, HASH_FILE)
    except (NotAnEpisode, Refused, OSError):
        return None
    is_same = (found.file, found.size_bytes, found.mtime_ns) == (file.name, *state)
    return found if is_same else None


def read_hash(file: Path, count: CountBytes = ignore_bytes) -> BagHash:
    """
    Read a file and return its hash; `count` gets the size of each block, and may raise. Raises
    OSError, and NotAnEpisode for a file that changes.
    """
    before = _state(file)
    left_bytes = before[0]

    def count_bounded(size_bytes: int) -> None:
        nonlocal left_bytes
        left_bytes -= size_bytes
        # a file that grows as fast as it is read would have no end
        if left_bytes < 0:
            raise _changed(file)
        count(size_bytes)

    try:
        sha256 = hash_of(file, count_bounded).hexdigest()
    except NotAnEpisode:
        raise
    except ValueError as error:
        raise NotAnEpisode(f'{file.name} {error}') from None
    if _state(file) != before:
        raise _changed(file)
    size_bytes, mtime_ns = before
    return BagHash(file=file.name, size_bytes=size_bytes, mtime_ns=mtime_ns, sha256=sha256)


def _changed(file: Path) -> NotAnEpisode:
    return NotAnEpisode(f'{file.name} changed while it was read')


def write_note(folder: Path, found: BagHash) -> None:
    """Keep a hash beside its bag; what a power failure takes is read again. Raises OSError."""
    with replacement_of(folder / HASH_FILE) as part:
        part.write_text(json.dumps(structs.asdict(found), indent=1) + '\n')


def _state(file: Path) -> tuple[int, int]:
    about = os.lstat(file)
    return about.st_size, about.st_mtime_ns
