# SPDX-License-Identifier: Apache-2.0
"""
The lock of a learner's folder, with the name of its holder. It ends with its process, however that
ends. One thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from lerobot_serve.errors import UserError

LOCK_FILE = 'lock'
HOLDER_LIMIT = 200


class FolderInUse(UserError):
    """Another learner uses the folder, or it cannot be written."""


class FolderLock:
    """Held from its creation until `release`, or until the process is gone."""

    def __init__(self, folder: Path, holder: str) -> None:
        """`holder` describes this process to others. Raises FolderInUse."""
        file = folder / LOCK_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise FolderInUse(
                f'folder {folder} cannot be written: {error.strerror or error}; set the parameter '
                'folder to one of your own'
            ) from None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            other = self._holder()
            os.close(self._handle)
            raise FolderInUse(
                f'folder {folder} is in use by another learner ({other}); stop it, or set the '
                'parameter folder to another one'
            ) from None
        # a full disk does not matter: the lock holds, only its text is missing
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, holder.encode()[:HOLDER_LIMIT], 0)

    def _holder(self) -> str:
        text = os.pread(self._handle, HOLDER_LIMIT, 0).decode(errors='replace').strip()
        return text if text.isprintable() and text else 'unknown'

    def release(self) -> None:
        """Release the lock; may be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1
