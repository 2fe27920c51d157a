# SPDX-License-Identifier: Apache-2.0
"""A lock of a folder that ends with its process, however that ends. Any thread."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lerobot_serve.tools.bags.message import BagError

LOCK_FILE = '.recorder.lock'


class FolderLock:
    """Held from its creation until `release`, or until the process is gone."""

    def __init__(self, folder: Path) -> None:
        """Raises BagError if another recorder holds it, or the folder cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # not inherited: a child would keep the lock
            self._handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BagError(f'{folder} cannot be written: {error.strerror or error}') from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._handle)
            raise BagError(
                f'{folder} is in use by another recorder; stop it, or name another folder'
            ) from None

    def release(self) -> None:
        """Release the lock; may be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1
