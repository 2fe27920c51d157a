# SPDX-License-Identifier: Apache-2.0
"""Keep what a command prints in a log of bounded size, and cut it into lines. One thread."""

from __future__ import annotations

import os
from pathlib import Path
import re
from typing import BinaryIO

# a progress bar ends its lines with a carriage return
LINE_END = re.compile(rb'[\r\n]')
LINE_LIMIT_BYTES = 4096
LIMIT_BYTES = 16 << 20
# colours and movements of a terminal
ESCAPES = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]')


class OutputLog:
    """
    A file and, once it is half as large as allowed, the one before it with the suffix .1; what is
    older is dropped. Raises OSError.
    """

    def __init__(self, file: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.file, self._limit_bytes = file, limit_bytes
        self._handle: BinaryIO = open(file, 'wb')  # noqa: SIM115
        self._part = b''
        # the last line that is not empty
        self.last_line = ''

    def add(self, data: bytes) -> list[str]:
        """Write what was printed and return the lines that it completes."""
        if self._handle.tell() + len(data) > self._limit_bytes // 2:
            self._handle.close()
            os.replace(self.file, self.file.with_name(self.file.name + '.1'))
            self._handle = open(self.file, 'wb')  # noqa: SIM115
        self._handle.write(data)
        *whole, part = LINE_END.split(self._part + data)
        self._part = part[-LINE_LIMIT_BYTES:]
        return self._remember(whole)

    def close(self) -> list[str]:
        """Close the file; return the line without an end."""
        self._handle.close()
        part, self._part = self._part, b''
        return self._remember([part])

    def _remember(self, pieces: list[bytes]) -> list[str]:
        lines = [_text(piece) for piece in pieces]
        lines = [line for line in lines if line]
        self.last_line = lines[-1] if lines else self.last_line
        return lines


def _text(piece: bytes) -> str:
    text = ESCAPES.sub('', piece[-LINE_LIMIT_BYTES:].decode(errors='replace'))
    return ' '.join(text.split())
