# SPDX-License-Identifier: Apache-2.0
"""
Episodes on their way into a dataset, in a folder beside it: OUT.staging. One process at a time.

Each episode is a LeRobot dataset of its own, written under a temporary name, flushed to the disk
and renamed; so a name without `.part` is a whole episode, and a killed conversion continues behind
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
from lerobot_serve.tools.dataset import records
from lerobot_serve.tools.dataset.checking import check_dataset
from lerobot_serve.tools.dataset.episodes import DatasetError, EpisodePlan
from lerobot_serve.tools.dataset.features import Features
from lerobot_serve.tools.dataset.lerobot_writer import EpisodeWriter

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
        sync_folder(path)


class EpisodeSink:
    """
    Writes each episode into its staged dataset, checked and committed at its end; several at a
    time for several robots.
    """

    def __init__(
        self, staging: Staging, names: dict[str, str], features: Features, vcodec: str
    ) -> None:
        self._staging, self._features, self._vcodec = staging, features, vcodec
        self.left = dict(names)
        self._open: dict[str, EpisodeWriter] = {}
        self._digests: dict[int, str] = {}

    def add(self, plan: EpisodePlan, row: dict[str, Any]) -> None:
        digest = self._digests.setdefault(id(plan), plan.digest)
        if digest not in self._open:
            self._open[digest] = EpisodeWriter(
                self._staging.part(self.left[digest]),
                self._features,
                fps=plan.fps,
                robot_type=plan.robot.description.name,
                rows=len(plan.rows),
                vcodec=self._vcodec,
            )
        self._open[digest].add(row)

    def end(self, plan: EpisodePlan) -> None:
        digest = self._digests[id(plan)]
        name = self.left[digest]
        writer = self._open[digest]
        writer.finish()
        del self._open[digest]
        faults = check_dataset(self._staging.part(name), decode=False)
        if faults:
            raise DatasetError(f'{plan.title} is not whole: ' + '; '.join(faults))
        self._staging.commit(name, records.episode_record(plan, digest))
        del self.left[digest]

    def give_up(self, plan: EpisodePlan) -> None:
        digest = self._digests.get(id(plan))
        if digest is not None and digest in self._open:
            self._open.pop(digest).abort()
            self._staging.discard(self.left[digest])

    def close(self) -> None:
        """Give up the episodes that are not at their end."""
        for digest, writer in self._open.items():
            writer.abort()
            self._staging.discard(self.left[digest])
        self._open.clear()
