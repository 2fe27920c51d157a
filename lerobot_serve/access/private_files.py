# SPDX-License-Identifier: Apache-2.0
"""
Files and folders that only their owner reads, from the moment of creation. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
import os
from pathlib import Path
import shutil

from lerobot_serve.atomic_file import replacement_of, sync_folder

FILE_MODE, FOLDER_MODE = 0o600, 0o700


def write_private(path: Path, content: bytes) -> None:
    """Write or replace a file; a reader finds the old or the new one. Raises OSError."""
    with replacement_of(path, durable=True) as part:
        # of a process that was killed
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
        with os.fdopen(handle, 'wb') as file:
            file.write(content)
            file.flush()
            os.fsync(handle)


def make_private_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """
    Make a folder that appears with all of its files; a name may have one /. Raises OSError, also
    where the folder exists and is not empty.
    """
    part = folder.with_name(f'.{folder.name}.part')
    # of a process that was killed
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=FOLDER_MODE)
    try:
        for name, content in files.items():
            (part / name).parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            write_private(part / name, content)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync_folder(folder.parent)
