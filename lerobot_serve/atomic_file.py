# SPDX-License-Identifier: Apache-2.0
"""
Replace a file as a whole: a reader finds the old content or the new one, never a part. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path


@contextlib.contextmanager
def replacement_of(path: Path, *, suffix: str = '.part', durable: bool = False) -> Iterator[Path]:
    """
    Yield a path beside `path` to write to; it takes the place of `path` at the end of the block.

    An error in the block removes it. `durable`: the new name survives a power failure. Raises
    OSError.
    """
    part = path.with_name(path.name + suffix)
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the names of a folder to the disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
