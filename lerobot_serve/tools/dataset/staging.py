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
import re
import shutil
from typing import Any

from lerobot_serve.atomic_file import sync_folder
from lerobot_serve.tools.dataset.plans.episodes import DatasetError

SUFFIX, PART = '.staging', '.part'
RECORD = 'episode.json'
MERGED, PREVIOUS, PUBLISHED, CACHE = 'merged', 'previous', 'published', 'cache'
EPISODE = re.compile(r'[0-9a-f]{32}')


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
        try:
            self._refuse_others()
            self._recover()
        except (DatasetError, OSError):
            os.close(self._handle)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def _refuse_others(self) -> None:
        """Raise DatasetError for a folder with content that no conversion wrote."""
        others = sorted(path.name for path in self.folder.iterdir() if not _is_ours(path.name))
        if others:
            raise DatasetError(
                f'{self.folder} is needed for the conversion and has other content: '
                f'{others[:5]}; move that away, or name another folder for the dataset'
            )

    def _recover(self) -> None:
        """Undo what a killed conversion left half done."""
        previous, published = self.folder / PREVIOUS, self.folder / PUBLISHED
        # killed between the last rename and the removal of this folder
        self.was_published = published.exists() and not self.merged.exists()
        if self.was_published and self.out.exists():
            self._remove_content()
            return
        published.unlink(missing_ok=True)
        if previous.exists() and not self.out.exists():
            previous.rename(self.out)
        for name in (MERGED, PREVIOUS):
            remove(self.folder / name)
        for part in self.folder.glob(f'*{PART}'):
            remove(part)

    def _remove_content(self) -> None:
        """Remove what is ours; last the mark that the dataset is in its place."""
        for path in list(self.folder.iterdir()):
            if _is_ours(path.name) and path.name != PUBLISHED:
                remove(path)
        (self.folder / PUBLISHED).unlink(missing_ok=True)

    def _remove_folder(self) -> None:
        self._remove_content()
        # something else may have come in
        with contextlib.suppress(OSError):
            self.folder.rmdir()

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
                self._remove_folder()

    @property
    def cache(self) -> Path:
        return self.folder / CACHE

    @property
    def groups(self) -> Path:
        """Where episodes are joined in groups; what a killed conversion left there is removed."""
        return self.cache / 'groups'

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
        self._remove_folder()


def _is_ours(name: str) -> bool:
    known = name in (MERGED, PREVIOUS, PUBLISHED, CACHE)
    return known or EPISODE.fullmatch(name.removesuffix(PART)) is not None


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
