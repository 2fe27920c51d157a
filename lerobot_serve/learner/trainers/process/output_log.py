# SPDX-License-Identifier: Apache-2.0
"""
Keep what a command prints in a log of bounded size, cut it into lines, and read the steps and the
loss of a training from them. One thread.
"""

from __future__ import annotations

import os
from pathlib import Path
import re
from typing import BinaryIO

from lerobot_serve.learner.trainers.base import Progress

# a progress bar ends its lines with a carriage return
LINE_END = re.compile(rb'[\r\n]')
LINE_LIMIT_BYTES = 4096
LIMIT_BYTES = 16 << 20
# colours and movements of a terminal
ESCAPES = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]')
NUMBER = re.compile(r'([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)([KMB]?)')
UNITS = {'': 1.0, 'K': 1e3, 'M': 1e6, 'B': 1e9}


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


class LogProgress:
    """The progress so far; without steps its share and its remaining time are not known."""

    def __init__(self, step: str, loss: str, steps: int) -> None:
        self._step, self._loss, self._steps = re.compile(step), re.compile(loss), steps
        self._share = 0.0
        self._last_loss: float | None = None
        # share and time of the first step that was seen: loading a model takes no part
        self._first: tuple[float, float] | None = None
        self._now_s = 0.0

    def see(self, line: str, now_s: float) -> bool:
        """Return whether a line says something new."""
        before = self._share, self._last_loss
        step = _found(self._step, line)
        if step is not None and self._steps:
            # lerobot-train rounds to thousands: no share goes back
            self._share = max(self._share, min(1.0, step / self._steps))
            self._first = self._first or (self._share, now_s)
            self._now_s = now_s
        loss = _found(self._loss, line)
        self._last_loss = self._last_loss if loss is None else loss
        return (self._share, self._last_loss) != before

    def progress(self) -> Progress:
        return Progress(self._share, self._last_loss, self._remaining_s())

    def _remaining_s(self) -> float | None:
        if self._first is None or self._share <= self._first[0]:
            return None
        share, began_s = self._first
        return (self._now_s - began_s) * (1 - self._share) / (self._share - share)


def _found(pattern: re.Pattern[str], line: str) -> float | None:
    """Return the number of the first group that matches; None for none."""
    match = pattern.search(line)
    text = next((group for group in match.groups() if group), '') if match else ''
    number = NUMBER.fullmatch(text.rstrip(','))
    return float(number[1]) * UNITS[number[2]] if number else None
