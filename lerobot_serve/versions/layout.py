# SPDX-License-Identifier: Apache-2.0
"""
The folder of a store:

    NAME@HASH/            a version: its files and version.json, read-only
    .store/lock           locked while the store changes
    .store/pins/          a file for each pinned version, with the reason
    .store/incoming/      what is published, fetched or deleted at the moment

Any thread; nothing here locks.
"""

from __future__ import annotations

from dataclasses import dataclass
import os
from pathlib import Path
from typing import Self

from lerobot_serve.atomic_file import sync_folder
from lerobot_serve.versions.errors import store_error, StoreError
from lerobot_serve.versions.manifest import ID

INNER = '.store'


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of a store."""

    folder: Path

    @property
    def lock(self) -> Path:
        return self.folder / INNER / 'lock'

    @property
    def pins(self) -> Path:
        return self.folder / INNER / 'pins'

    @property
    def incoming(self) -> Path:
        return self.folder / INNER / 'incoming'

    def path(self, version_id: str) -> Path:
        return self.folder / version_id

    def ids(self) -> list[str]:
        """Return the ids of all versions, in order. Raises StoreError."""
        try:
            return sorted(name for name in os.listdir(self.folder) if ID.fullmatch(name))
        except OSError as error:
            raise store_error(f'store {self.folder} cannot be read', error) from None

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Return an existing store. Raises StoreError for any other folder."""
        layout = cls(Path(os.path.abspath(folder)))
        if not layout.lock.is_file():
            raise StoreError(
                f'{folder} is not a store of versions; name one with --store, or make it with '
                '`lerobot-serve versions publish` or `fetch`'
            )
        return layout

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Return a store, made if the folder is new or empty. Raises StoreError."""
        layout = cls(Path(os.path.abspath(folder)))
        try:
            if layout.lock.is_file():
                return layout
            layout.folder.mkdir(parents=True, exist_ok=True)
            # of a process that makes the store at the same time, or was killed while it did
            others = [name for name in os.listdir(layout.folder) if name != INNER]
            if others and not layout.lock.is_file():
                raise StoreError(
                    f'{folder} is not a store of versions and not empty (it holds '
                    f'{min(others)!r}); give a new or empty folder'
                )
            layout.pins.mkdir(parents=True, exist_ok=True)
            layout.incoming.mkdir(exist_ok=True)
            # last, because it makes the folder a store
            os.close(os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o644))
            sync_folder(layout.lock.parent)
            sync_folder(layout.folder)
        except OSError as error:
            raise store_error(f'store {folder} cannot be made', error) from None
        return layout
