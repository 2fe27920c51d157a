# SPDX-License-Identifier: Apache-2.0
"""
The folder in which a recorder writes one bag after the other. The writing thread.

A bag is named by what it holds and the time of its first message, never like one that is there.
"""

from __future__ import annotations

from datetime import datetime
import os
from pathlib import Path
import shutil

from lerobot_serve.contract.names import file_name
from lerobot_serve.errors import UserError
from lerobot_serve.state_folder import FolderLock
from lerobot_serve.tools.bags.message import BagError
from lerobot_serve.tools.bags.recording.writer import BagWriter
from lerobot_serve.tools.recorder.storage.recovery import (
    free_name,
    recover_all,
    Recovered,
)

RECORDER = 'lerobot-serve record'
SECOND_NS = 10**9
# the range of a 32 bit time; a clock may be anywhere
LAST_S = (1 << 31) - 1


class BagFolder:
    """Locked from its creation until `close`."""

    def __init__(self, root: Path) -> None:
        """
        Complete the bags that a killed recorder left.
        Raises BagError if another process uses the folder, or it cannot be written.
        """
        self.root = root
        try:
            self._lock = FolderLock(root, RECORDER, 'folder')
        except UserError as error:
            raise BagError(str(error)) from None
        if self._lock.fault:
            raise BagError(self._lock.fault)
        self.recovered: list[Recovered] = []
        try:
            self.recovered = recover_all(root)
        except (OSError, BagError) as error:
            self._lock.release()
            raise BagError(f'{root}: a cut bag cannot be completed: {error}') from error

    def begin(self, *words: str, begin_ns: int) -> BagWriter:
        """Begin a bag named by `words` and the time of its first message. Raises OSError."""
        second = min(max(begin_ns // SECOND_NS, 0), LAST_S)
        time = datetime.fromtimestamp(second).strftime('%Y%m%d-%H%M%S')
        name = '_'.join([*(file_name(word.strip('/')) for word in words if word), time])
        try:
            folder = free_name(self.root / name)
            return BagWriter(folder, distro=os.environ.get('ROS_DISTRO', ''), is_temporary=True)
        except BagError as error:
            raise OSError(str(error)) from error

    def discard(self, bag: BagWriter) -> None:
        """Remove a bag that was begun and is not wanted."""
        bag.abort()
        shutil.rmtree(bag.current_folder, ignore_errors=True)

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.release()
