# SPDX-License-Identifier: Apache-2.0
"""
Find the episodes in the folder of a recorder, as it announces them: the bags are the source of
truth.

Any thread, also while a recorder writes into the folder. Nothing is written.

Cache the SHA-256 of a bag's file in bag_hash.json beside it. The cache holds while size and
modification time of the file match; otherwise the file is read again. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import json
import os
from pathlib import Path
import socket
from typing import NamedTuple

from msgspec import structs

from lerobot_serve.atomic_file import replacement_of
from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.contract.types import Time
from lerobot_serve.experience.bag_files import (
    bag_file,
    completed_ns,
    NotAnEpisode,
    read_object,
    RECORDING,
)
from lerobot_serve.experience.recorded_episode import (
    check_recorded,
    LAST_NS,
    OUTCOMES,
    read_summary,
)
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


HashFile = Callable[[Path], BagHash]
OnSkipped = Callable[[Path, str], object]


class FoundFolders(NamedTuple):
    """
    The folders in one: those that look like whole episodes, the oldest first, and others with the
    reason. Bags that are being written are in neither.
    """

    episodes: list[Path]
    others: list[tuple[Path, str]]


def find_folders(root: Path | str) -> FoundFolders:
    """Return the folders in `root`, without reading their files. Raises OSError."""
    dated: list[tuple[int, str, Path]] = []
    others: list[tuple[Path, str]] = []
    with os.scandir(root) as entries:
        folders = [
            Path(root, each.name)
            for each in entries
            if each.is_dir() and not each.name.endswith(RECORDING)
        ]
    for folder in folders:
        try:
            dated.append((completed_ns(folder), folder.name, folder))
        except (NotAnEpisode, OSError) as error:
            others.append((folder, _reason(error)))
    return FoundFolders([folder for _, _, folder in sorted(dated)], sorted(others))


def episodes_in(
    root: Path | str, on_skipped: OnSkipped | None = None
) -> Iterator[RecordedEpisode]:
    """
    Yield the episodes whose bags are whole in a folder, the oldest first. `on_skipped` gets each
    other folder and why. A bag without a hash beside it is read. Raises OSError if the folder
    cannot be read.
    """
    skip = on_skipped or _ignore
    folders, others = find_folders(root)
    for folder, reason in others:
        skip(folder, reason)
    for folder in folders:
        try:
            episode = read_episode(folder)
        except (NotAnEpisode, OSError) as error:
            skip(folder, _reason(error))
        else:
            yield episode


def read_episode(folder: Path, hash_file: HashFile | None = None) -> RecordedEpisode:
    """
    Return the episode of a whole bag; `hash_file` gives the hash of its file. Raises NotAnEpisode
    and OSError.
    """
    stamp_ns, file, summary = completed_ns(folder), bag_file(folder), read_summary(folder)
    found = (hash_file or known_hash)(file)
    # a number of a judge that no message of an episode has is not an outcome
    number = OUTCOMES.index(summary.outcome) if summary.outcome in OUTCOMES else 0
    episode = RecordedEpisode(
        stamp=Time.of_ns(min(max(stamp_ns, 0), LAST_NS)),
        client_id=summary.robot,
        episode_id=summary.episode_id,
        outcome=RecordedEpisode.Outcome(number),
        control_steps=summary.control_steps,
        control_steps_person=summary.control_steps_person,
        policies=tuple(summary.policies),
        host=socket.gethostname(),
        path=os.path.abspath(folder),
        size_bytes=found.size_bytes,
        sha256=found.sha256,
    )
    try:
        check_recorded(episode)
        # the limits of its texts
        encode(episode)
    except ValueError as error:
        raise NotAnEpisode(str(error)) from None
    return episode


def known_hash(file: Path) -> BagHash:
    """Return the hash beside a file, else that of its content. Raises NotAnEpisode, OSError."""
    return noted_hash(file) or read_hash(file)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f'it cannot be read: {error.strerror or error}'
    return str(error)


def _ignore(_: Path, __: str) -> None:
    pass
