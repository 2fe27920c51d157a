# SPDX-License-Identifier: Apache-2.0
"""
Write the files of a run: one os.write per line, so that a killed process truncates at most the
last line. A new file follows a full one; the oldest file is removed. Guarded by the lock of the
writer.
"""

from __future__ import annotations

from collections import deque
import contextlib
import errno
from itertools import count
import os
from pathlib import Path
from typing import Any

from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.run_files import free_stem, PART_LIMIT_MIN, part_name

# append only, and never to a file of another run
NEW_FILE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
FOOTER_BYTES = 512


class RotatingTraceFile:
    """`path` is the current or latest part; `records` counts its lines without the header."""

    def __init__(self, folder: Path, name: str, *, limit_bytes: int, keep_files: int) -> None:
        """Set the limits; `begin` creates the first file. Raises ValueError."""
        if limit_bytes < PART_LIMIT_MIN:
            raise ValueError(f'limit_bytes must be at least {PART_LIMIT_MIN}, got {limit_bytes}')
        if keep_files < 1:
            raise ValueError(f'keep_files must be at least 1, got {keep_files}')
        self._folder, self._name = folder, name
        self._limit_bytes, self._keep_files = limit_bytes, keep_files
        self._stem = ''
        self._next = 0
        self._kept: deque[Path] = deque()
        self._file: int | None = None
        self._size = 0
        self.path: Path | None = None
        self.records = 0

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def begin(self, header: dict[str, Any]) -> None:
        """Open the next part; no part may be open. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._stem:
            self._stem = free_stem(self._name, os.listdir(self._folder))
        number, path, file = self._create()
        place = {'part': number} | ({'continues': self.path.name} if self.path else {})
        line = encode(header | place)
        try:
            write_line(file, line)
        except OSError:
            os.close(file)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._file, self._size, self.records = file, len(line), 0
        self._next, self.path = number + 1, path
        self._remove_oldest(path)

    def has_room(self, size: int) -> bool:
        """Return whether a line of `size` bytes fits; the first line always fits."""
        return not self.records or self._size + size + FOOTER_BYTES <= self._limit_bytes

    def write(self, line: bytes) -> None:
        """Append a line. Raises OSError."""
        write_line(self._open_file(), line)
        self._size += len(line)
        self.records += 1

    def is_deleted(self) -> bool:
        """Return whether the open file was deleted."""
        return os.fstat(self._open_file()).st_nlink == 0

    def close(self) -> None:
        """Close the file, if one is open."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def _open_file(self) -> int:
        if self._file is None:
            raise OSError(errno.EBADF, 'no part is open')
        return self._file

    def _create(self) -> tuple[int, Path, int]:
        """Create the next free part; return its number, path and descriptor."""
        for number in count(self._next):
            path = self._folder / part_name(self._stem, number)
            with contextlib.suppress(FileExistsError):
                return number, path, os.open(path, NEW_FILE, 0o644)
        raise AssertionError('unreachable: count() is infinite')

    def _remove_oldest(self, newest: Path) -> None:
        self._kept.append(newest)
        while len(self._kept) > self._keep_files:
            with contextlib.suppress(OSError):
                self._kept.popleft().unlink()


def write_line(file: int, line: bytes) -> None:
    """Write a line. Raises OSError, also for a partial write."""
    if os.write(file, line) < len(line):
        raise OSError(errno.ENOSPC, 'disk full: a line was written in part')
