# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of files and folders, read in blocks. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import hashlib
import os
from pathlib import Path
import stat
from typing import BinaryIO

BLOCK_BYTES = 1 << 20
CountBytes = Callable[[int], object]


def ignore_bytes(_: int) -> None:
    """Count nothing."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, but no link, device or pipe. Raises OSError, ValueError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError('is not a regular file')
    return os.fdopen(handle, 'rb')


def blocks_of(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block


def hash_of(path: Path, count: CountBytes = ignore_bytes) -> hashlib._Hash:
    """Return the hash of what a file holds, to be continued. Raises OSError, ValueError."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        for block in blocks_of(file):
            digest.update(block)
            count(len(block))
    return digest


def folder_sha256(folder: Path, count: CountBytes = ignore_bytes) -> str:
    """
    Return one hash over paths, sizes and contents of all files below a folder, such as a data
    set; links are not followed. Raises OSError, ValueError.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob('*') if not path.is_dir()):
        content = hash_of(path, count).hexdigest()
        name = path.relative_to(folder).as_posix()
        digest.update(f'{name}\0{path.stat().st_size}\0{content}\n'.encode(errors='replace'))
    return digest.hexdigest()
