# SPDX-License-Identifier: Apache-2.0
"""
A command below a guard, which ends all of its processes when this one ends; and what it prints:
kept in a log of bounded size and cut into lines, from which the steps and the loss of a training
are read. One thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import os
from pathlib import Path
import re
import select
from typing import BinaryIO, IO

from lerobot_serve.child_process import PIPE, python, start, STDOUT, TimeoutExpired
from lerobot_serve.learner.trainers import guard
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


READ_BYTES = 1 << 16
# after SIGKILL; a process that hangs in a driver keeps its guard
KILLED_LIMIT_S = 10.0


class GuardedProcess:
    """See the module; a context manager, whose end kills what still runs. Raises OSError."""

    def __init__(
        self, words: Sequence[str], *, folder: Path, environment: Mapping[str, str]
    ) -> None:
        """Start the words in a folder, with exactly this environment."""
        self._process = start(
            python('-I', guard.__file__, *words),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        self._output: IO[bytes] = _pipe(self._process.stdout)
        self._signals: IO[bytes] = _pipe(self._process.stdin)

    def __enter__(self) -> GuardedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            # its end is a kill
            self._signals.close()
        with contextlib.suppress(TimeoutExpired):
            self._process.wait(KILLED_LIMIT_S)
        self._output.close()

    def read(self, limit_s: float) -> bytes | None:
        """Return what was printed within the limit, empty for nothing; None at the end."""
        ready, _, _ = select.select([self._output], [], [], limit_s)
        if not ready:
            # without its guard, what the command left may keep the pipe
            return b'' if self._process.poll() is None else None
        return os.read(self._output.fileno(), READ_BYTES) or None

    def send(self, signal_byte: bytes) -> None:
        """Send a signal to the command: a key of guard.SIGNALS, or guard.KILL."""
        with contextlib.suppress(OSError):
            self._signals.write(signal_byte)
            self._signals.flush()

    def exit_status(self) -> int:
        """
        Return the exit status, as a shell has it, once the output has ended. A command that even
        SIGKILL did not end counts as killed.
        """
        try:
            return self._process.wait(KILLED_LIMIT_S)
        except TimeoutExpired:
            return guard.BY_SIGNAL + 9


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
