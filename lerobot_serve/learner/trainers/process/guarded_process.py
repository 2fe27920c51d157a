# SPDX-License-Identifier: Apache-2.0
"""
A command below a guard, which ends all of its processes when this one ends. One thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import os
from pathlib import Path
import select
from typing import IO

from lerobot_serve.child_process import PIPE, python, start, STDOUT, TimeoutExpired
from lerobot_serve.learner.trainers.process import guard

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
