# SPDX-License-Identifier: Apache-2.0
"""
A file that says by its existence what a person decided: it survives the process, and the power.

That it exists is all it says, so no damage can let a policy drive against the decision. Any
thread, one at a time.
"""

from __future__ import annotations

from pathlib import Path
import queue
import threading
from typing import NamedTuple

from lerobot_serve.atomic_file import replacement_of, sync_folder

DISK_LIMIT_S = 1.0
TAKEN_OVER, PAUSED = 'taken_over', 'paused'
TEXTS = {
    TAKEN_OVER: 'A person has taken over this robot. The service ~/hand_back removes this file.\n',
    PAUSED: 'An operator has paused this robot. The service ~/resume removes this file.\n',
}


class FlagFile:
    """One decision, in the state folder of one robot."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path, self._text = folder / name, TEXTS[name]
        self._lock, self._is_decided = threading.Lock(), False

    def exists(self) -> bool:
        """Return whether it was decided; true where that cannot be found out."""
        try:
            self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def create(self) -> str:
        """Write the file to the disk; return why that failed, empty otherwise."""
        return self._settle(is_decided=True)

    def remove(self) -> str:
        """Remove the file from the disk; return why that failed, empty otherwise."""
        return self._settle(is_decided=False)

    def _settle(self, *, is_decided: bool) -> str:
        """
        Bring the file to the disk in a thread of its own, and wait for DISK_LIMIT_S at most: a
        disk that hangs holds up no other call of an operator.
        """
        self._is_decided = is_decided
        done: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(
            target=lambda: done.put(self._apply()), name='decision', daemon=True
        ).start()
        try:
            return done.get(timeout=DISK_LIMIT_S)
        except queue.Empty:
            return f'{self.path}: the disk has not responded for {DISK_LIMIT_S:g} s'

    def _apply(self) -> str:
        # the newest decision, whichever thread comes last
        with self._lock:
            return self._create() if self._is_decided else self._remove()

    def _create(self) -> str:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacement_of(self.path, durable=True) as part:
                part.write_text(self._text)
                sync_folder(part)
        except OSError as error:
            return f'{self.path} is not written ({error.strerror or error})'
        return ''

    def _remove(self) -> str:
        if not self.exists():
            return ''
        try:
            self.path.unlink()
            sync_folder(self.path.parent)
        except OSError as error:
            return f'{self.path} is not removed ({error.strerror or error})'
        return ''


class DecisionFiles(NamedTuple):
    """The files of one robot."""

    takeover: FlagFile
    pause: FlagFile
