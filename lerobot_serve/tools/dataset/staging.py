# SPDX-License-Identifier: Apache-2.0
"""
Episodes on their way into a dataset, in a folder beside it: OUT.staging. One process at a time.

Each episode is a LeRobot dataset of its own, written under a temporary name, flushed to the disk
and renamed; so a name without `.part` is a whole episode, and a killed conversion goes on behind
the last. The dataset itself is replaced by a rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
import shutil
from typing import Any

from lerobot_serve.atomic_file import sync_folder
from lerobot_serve.tools.dataset.plans.episodes import DatasetError

SUFFIX, PART = '.staging', '.part'
RECORD = 'episode.json'
MERGED, PREVIOUS, PUBLISHED = 'merged', 'previous', 'published'


class Staging:
    """See the module; a context manager that holds the lock. Raises DatasetError, OSError."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(out.name + SUFFIX)
        self.was_published = False
        self._handle = -1

    def __enter__(self) -> Staging:
        self.folder.mkdir(parents=True, exist_ok=True)
        # the lock of a folder ends with the process, also by SIGKILL
        self._handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._handle).st_ino != self.folder.stat().st_ino:
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            os.close(self._handle)
            raise DatasetError(
                f'another conversion writes {self.out}; wait for its end, or name another folder'
            ) from None
        self._recover()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def _recover(self) -> None:
        """Undo what a killed conversion left half done."""
        previous, published = self.folder / PREVIOUS, self.folder / PUBLISHED
        # killed between the last rename and the removal of this folder
        self.was_published = published.exists() and not self.merged.exists()
        published.unlink(missing_ok=True)
        if previous.exists() and not self.out.exists():
            previous.rename(self.out)
        for name in (MERGED, PREVIOUS):
            remove(self.folder / name)
        for part in self.folder.glob(f'*{PART}'):
            remove(part)

    def is_ready(self, name: str) -> bool:
        return (self.folder / name / RECORD).is_file()

    def path(self, name: str) -> Path:
        return self.folder / name

    def part(self, name: str) -> Path:
        """Return the folder in which an episode is written, which does not exist yet."""
        return self.folder / (name + PART)

    def commit(self, name: str, record: dict[str, Any]) -> None:
        """Make a written episode durable."""
        part = self.part(name)
        (part / RECORD).write_text(json.dumps(record))
        sync_tree(part)
        part.rename(self.folder / name)
        sync_folder(self.folder)

    def record(self, name: str) -> dict[str, Any]:
        """Return what was committed with an episode."""
        content: dict[str, Any] = json.loads((self.folder / name / RECORD).read_text())
        return content

    def discard(self, name: str) -> None:
        """Remove an episode that is being written."""
        with contextlib.suppress(OSError):
            remove(self.part(name))

    def remove_if_empty(self) -> None:
        """Remove the folder unless it has episodes for the next conversion."""
        with contextlib.suppress(OSError):
            if self.folder.exists() and not any(self.folder.glob(f'*/{RECORD}')):
                remove(self.folder)

    @property
    def merged(self) -> Path:
        return self.folder / MERGED

    def publish(self) -> None:
        """Put the merged dataset into its place, then remove the staging folder."""
        sync_tree(self.merged)
        (self.folder / PUBLISHED).touch()
        if self.out.exists():
            self.out.rename(self.folder / PREVIOUS)
        self.merged.rename(self.out)
        sync_folder(self.out.parent)
        remove(self.folder)


def remove(path: Path) -> None:
    """Remove a folder if it is there. Raises OSError."""
    if path.exists():
        shutil.rmtree(path)


def sync_tree(folder: Path) -> None:
    """Flush all files and folders below a folder to the disk. Raises OSError."""
    for path in (*folder.rglob('*'), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
