# SPDX-License-Identifier: Apache-2.0
"""
A thread that looks to the kernel like the thread of timers of a participant that has locked itself
up: it has its name, and waits for a lock that is never released.

Two threads of Fast DDS meet so once in some thousand ends of other processes, at no known instant.
"""

from __future__ import annotations

import ctypes
import threading

NAME = b'dds.ev.0'
# PR_SET_NAME of prctl(2)
SET_NAME = 15
LOCK_BYTES = 64


class LockedTimer:
    """A lock that the maker holds, and a thread that waits for it until `release`."""

    def __init__(self, name: bytes = NAME) -> None:
        self._library, self._name = ctypes.CDLL(None), name
        self._lock = ctypes.create_string_buffer(LOCK_BYTES)
        self._library.pthread_mutex_lock(self._lock)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        self._library.prctl(SET_NAME, self._name, 0, 0, 0)
        # without the lock of the interpreter
        self._library.pthread_mutex_lock(self._lock)
        self._library.pthread_mutex_unlock(self._lock)

    @property
    def task(self) -> int:
        """The number of the thread."""
        assert self._thread.native_id
        return self._thread.native_id

    def release(self) -> None:
        """Let the thread end."""
        self._library.pthread_mutex_unlock(self._lock)
        self._thread.join()
