# SPDX-License-Identifier: Apache-2.0
"""
Find the episodes in the folder of a recorder, as it announces them: the bags are the source of
truth.

Any thread, also while a recorder writes into the folder. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import socket
from typing import NamedTuple

from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.contract.types import Time
from lerobot_serve.experience.bag_files import (
    bag_file,
    completed_ns,
    NotAnEpisode,
    RECORDING,
)
from lerobot_serve.experience.episode_summary import read_summary
from lerobot_serve.experience.hash_note import BagHash, noted_hash, read_hash
from lerobot_serve.experience.recorded_episode import check_recorded, LAST_NS, OUTCOMES

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
