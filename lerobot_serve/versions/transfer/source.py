# SPDX-License-Identifier: Apache-2.0
"""What a version is fetched from, and the source that is a folder of this machine."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass
import os
from pathlib import Path
from typing import Protocol

from lerobot_serve.versions.errors import FetchError, VersionError
from lerobot_serve.versions.file_hash import blocks_of, open_regular
from lerobot_serve.versions.layout import held, Layout
from lerobot_serve.versions.manifest import Manifest, ManifestFile, read_manifest
from lerobot_serve.versions.store import is_version


@dataclass(frozen=True, slots=True)
class Opened:
    """A file from `start` on; a source that cannot continue one starts at 0."""

    start: int
    blocks: Iterator[bytes]


class VersionSource(Protocol):
    """One thread. All methods raise FetchError; Interrupted where another attempt may succeed."""

    name: str

    def ids(self) -> list[str]:
        """Return the ids of its versions."""
        ...

    def manifest(self, version_id: str) -> Manifest: ...

    def open(
        self, version_id: str, file: ManifestFile, start: int
    ) -> contextlib.AbstractContextManager[Opened]:
        """Open a file at an offset; its blocks end where the file ends."""
        ...


class FolderSource:
    """A store of this machine, or the folder of one version."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreError."""
        self.name, self._folder = str(folder), folder
        self._is_version = is_version(folder)
        if not self._is_version:
            Layout.open(folder)

    def ids(self) -> list[str]:
        if self._is_version:
            return [self._read(self._folder).id]
        return Layout.open(self._folder).ids()

    def manifest(self, version_id: str) -> Manifest:
        return self._read(self._path(version_id))

    @contextlib.contextmanager
    def open(self, version_id: str, file: ManifestFile, start: int) -> Iterator[Opened]:
        path = self._path(version_id) / file.path
        try:
            with held(self._path(version_id)), open_regular(path) as opened:
                size = os.fstat(opened.fileno()).st_size
                if size != file.size_bytes:
                    raise FetchError(
                        f'{path} has {size} bytes, its manifest names {file.size_bytes}; run '
                        f'`lerobot-serve versions verify {version_id} --store {self._folder}`'
                    )
                opened.seek(start)
                yield Opened(start, blocks_of(opened))
        except ValueError as error:
            raise FetchError(f'{path} {error}; the version is damaged there') from None

    def _path(self, version_id: str) -> Path:
        return self._folder if self._is_version else self._folder / version_id

    def _read(self, folder: Path) -> Manifest:
        try:
            return read_manifest(folder)
        except VersionError as error:
            raise FetchError(str(error)) from None
