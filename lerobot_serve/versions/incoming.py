# SPDX-License-Identifier: Apache-2.0
"""
Folders in which a version is put together, until a rename makes it a version of the store.

The process that fills one locks it; the kernel unlocks it with the process. A folder without a
lock is a leftover: that of a fetch may be continued for LEFTOVER_LIMIT_S, others are removed with
the next change of the store. One thread for each folder.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import fcntl
import os
from pathlib import Path
import secrets
import shutil
import time

from lerobot_serve.atomic_file import sync_folder
from lerobot_serve.versions.errors import store_error, VersionConflict, VersionInUse
from lerobot_serve.versions.layout import Layout, store_lock, try_lock
from lerobot_serve.versions.manifest import differences, Manifest, MANIFEST_FILE, read_manifest

PUBLISH, FETCH, DELETED = 'publish', 'fetch', 'deleted'
FILE_MODE = 0o444
LEFTOVER_LIMIT_S = 7 * 86400.0


def temporary_name(purpose: str, version_id: str, key: str = '') -> str:
    """Return the name of an incoming folder: of `key`, or one that no other has."""
    return f'{purpose}~{version_id}~{key or secrets.token_hex(8)}'


@contextlib.contextmanager
def incoming_folder(layout: Layout, name: str, *, keeps: bool = False) -> Iterator[Path]:
    """
    Yield a locked folder, new or a leftover of the same name; it is removed after an error unless
    `keeps`. Raises VersionInUse if another process fills it, OSError.
    """
    folder = layout.incoming / name
    with store_lock(layout.lock):
        remove_leftovers(layout, except_for=name)
        folder.mkdir(exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        if not try_lock(handle, fcntl.LOCK_EX):
            os.close(handle)
            raise VersionInUse(
                f'another process fetches {name.split("~")[1]} into {layout.folder}; wait until '
                'it has ended'
            )
    try:
        yield folder
    except BaseException:
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def remove_leftovers(layout: Layout, except_for: str = '') -> None:
    """Remove what ended processes left; under the lock of the store."""
    for folder in sorted(layout.incoming.iterdir()):
        if folder.name == except_for or not _is_leftover(folder):
            continue
        # a version that is there has nothing to continue
        is_fetch = folder.name.startswith(f'{FETCH}~')
        is_done = layout.path(folder.name.split('~')[1]).exists() if is_fetch else True
        if is_done or time.time() - folder.stat().st_mtime > LEFTOVER_LIMIT_S:
            shutil.rmtree(folder, ignore_errors=True)


def _is_leftover(folder: Path) -> bool:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return folder.name.count('~') == 2 and try_lock(handle, fcntl.LOCK_EX)
    finally:
        os.close(handle)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of an incoming folder. Raises OSError."""
    file = folder / MANIFEST_FILE
    file.unlink(missing_ok=True)
    with open(file, 'xb') as opened:
        opened.write(manifest.encoded())
        opened.flush()
        os.fsync(opened.fileno())


def complete(layout: Layout, folder: Path, manifest: Manifest) -> bool:
    """
    Make an incoming folder a version; its files are written and flushed. Return False if the store
    has the same version already. Raises VersionConflict if it has other files, StoreError.
    """
    target = layout.path(manifest.id)
    try:
        for each in manifest.files:
            (folder / each.path).chmod(FILE_MODE)
        (folder / MANIFEST_FILE).chmod(FILE_MODE)
        for inner in (folder, *(path for path in folder.rglob('*') if path.is_dir())):
            sync_folder(inner)
        with store_lock(layout.lock):
            if target.exists():
                check_same(target, manifest)
                shutil.rmtree(folder, ignore_errors=True)
                return False
            os.rename(folder, target)
            sync_folder(layout.folder)
            sync_folder(layout.incoming)
    except OSError as error:
        raise store_error(f'{target} cannot be written', error) from None
    return True


def check_same(target: Path, manifest: Manifest) -> None:
    """Raise VersionConflict unless the version in `target` has the files of a manifest."""
    found = differences(read_manifest(target), manifest).files
    if found:
        names = ', '.join(each.path for each in found[:3])
        raise VersionConflict(
            f'{target} exists, and other files under the same id were given: {names} differ; it '
            'stays unchanged. Delete it first, or give the policy another name'
        )
