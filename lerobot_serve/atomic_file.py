# SPDX-License-Identifier: Apache-2.0
"""
Replace a file atomically: a reader finds the old or the new content, never a part. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path


@contextlib.contextmanager
def replacement_of(path: Path, *, suffix: str = '.part', durable: bool = False) -> Iterator[Path]:
    """
    Yield a temporary path beside `path`; it replaces `path` at the end of the block.

    An error in the block removes the temporary file. `durable`: the result survives a power
    failure. Raises OSError.
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
    """Flush the entries of a folder to the disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
