# SPDX-License-Identifier: Apache-2.0
"""
A step of a round as a child process: its reports come through a pipe, its output goes to a file.

One thread. The child has a session of its own, so that Ctrl-C in a terminal ends the learner, and
the learner ends the child.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
import contextlib
import math
import os
from pathlib import Path
import signal
import threading
import time

from lerobot_serve.child_process import PIPE, python, start
from lerobot_serve.learner.steps import (
    decoded_report,
    Done,
    encoded,
    Failed,
    Job,
    Report,
)

# a trainer ends its own processes meanwhile
END_LIMIT_S = 60.0
READ_BYTES = 1 << 16
# a step waits while its reports are not taken: the longest one has the hashes of 100,000 episodes
BUFFER_BYTES, REPORTS_A_POLL = 1 << 24, 50
# by its name: no node imports the tools
PROGRAM = 'lerobot_serve.tools.learning.program'
LOG_TAIL_BYTES = 2000


class StepProcess:
    """
    See the module; the learner polls it, or waits until `fileno` can be read. The file of the
    output is replaced by each attempt.
    """

    def __init__(self, job: Job, log: Path) -> None:
        """Start the child. Raises OSError."""
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._reading, writing = os.pipe()
        try:
            os.set_blocking(self._reading, False)
            with open(log, 'wb') as output:
                self._process = start(
                    python('-m', PROGRAM, str(writing)),
                    stdin=PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(writing,),
                    start_new_session=True,
                )
        except OSError:
            os.close(self._reading)
            raise
        finally:
            os.close(writing)
        self._unread = b''
        self._lines: deque[bytes] = deque()
        self._is_over = False
        self._kill_at_s: float | None = None
        self._send(encoded(job))

    @property
    def pid(self) -> int:
        return self._process.pid

    def _send(self, line: bytes) -> None:
        """Send the job; the pipe stays open as a sign of life."""
        assert self._process.stdin
        # a child that ended is found by poll
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def fileno(self) -> int:
        return self._reading

    @property
    def has_more(self) -> bool:
        """Whether reports wait that `fileno` does not show."""
        return bool(self._lines) and not self._is_over

    def poll(self) -> list[Report]:
        """Return what was reported since; a Done or Failed is the last one of all."""
        if self._is_over:
            return []
        # the child waits for room in the pipe meanwhile
        has_ended = not self._lines and self._read()
        found: list[Report] = []
        while self._lines and len(found) < REPORTS_A_POLL and not self._is_over:
            with contextlib.suppress(ValueError):
                found.append(decoded_report(self._lines.popleft()))
                self._is_over = isinstance(found[-1], Done | Failed)
        if has_ended and not self._lines and not self._is_over:
            self._is_over = True
            found.append(Failed(self._death()))
        return found

    def _read(self) -> bool:
        """Read the lines that are there; return whether no more will come."""
        has_ended = False
        while len(self._unread) < BUFFER_BYTES:
            try:
                data = os.read(self._reading, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                has_ended = True
                break
            self._unread += data
        *lines, self._unread = self._unread.split(b'\n')
        self._lines.extend(lines)
        # a line without an end is one, too
        return has_ended or len(self._unread) >= BUFFER_BYTES

    def _death(self) -> str:
        """Return how a child ended without a result."""
        self.kill()
        code = self._process.returncode
        how = signal.Signals(-code).name if code < 0 else f'status {code}'
        memory = '; the kernel does so when memory runs out' if how == 'SIGKILL' else ''
        return f'its process ended with {how}{memory}; {self._log} ends with: {self._last_line()}'

    def _last_line(self) -> str:
        with contextlib.suppress(OSError):
            text = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors='replace')
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            return lines[-1][:400] if lines else 'nothing'
        return 'nothing'

    def request_end(self, limit_s: float = END_LIMIT_S) -> None:
        """Ask the step to end within a limit; its reports do not count any more."""
        self._is_over = True
        if self._kill_at_s is None:
            self._signal(signal.SIGTERM)
        at_s = time.monotonic() + limit_s
        self._kill_at_s = at_s if self._kill_at_s is None else min(at_s, self._kill_at_s)

    def has_ended(self) -> bool:
        """Return whether the process is gone; kill it when it was asked too long ago."""
        if self._process.poll() is not None:
            self.close()
            return True
        if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
            self.kill()
            return True
        return False

    def kill(self) -> None:
        """End the child and what it started, at once."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self.close()

    def _signal(self, number: signal.Signals) -> None:
        # the child leads its group; it is not reaped yet, so its number is its own
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if number is signal.SIGKILL:
                    os.killpg(self._process.pid, number)
                else:
                    self._process.send_signal(number)

    def close(self) -> None:
        """Close the pipes; may be called twice."""
        self._is_over = True
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()


StartStep = Callable[[Job, Path], StepProcess]


# while a process ends; its end is not an event
POLL_S = 0.05
# of all processes, when the learner ends: less than the runtime waits for a thread
STOP_LIMIT_S = 3.0


class StepRunner:
    """See the module."""

    def __init__(self, start_step: StartStep) -> None:
        self._start_step = start_step
        self._running: StepProcess | None = None
        self._ending: list[StepProcess] = []
        self._queued: tuple[Job, Path] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no step runs or waits."""
        return not (self._running or self._queued)

    @property
    def readable(self) -> list[StepProcess]:
        """What `select` waits for."""
        return [self._running] if self._running else []

    @property
    def poll_s(self) -> float:
        """How soon there is something to do besides what `select` finds; infinite for nothing."""
        if self._running and self._running.has_more:
            return 0.0
        return POLL_S if self._ending else math.inf

    def start(self, job: Job, log: Path) -> None:
        """Start a step, as soon as a dropped one is gone. Raises OSError."""
        assert self.is_idle
        self._queued = (job, log)
        self.advance()

    def advance(self) -> None:
        """Start what waits. Raises OSError."""
        self._ending = [step for step in self._ending if not step.has_ended()]
        if self._queued and not self._ending:
            (job, log), self._queued = self._queued, None
            self._running = self._start_step(job, log)

    def poll(self) -> Iterator[Report]:
        """Yield what the running step reports; a result is the last of all."""
        step = self._running
        for report in step.poll() if step else ():
            if isinstance(report, Done | Failed):
                # its process ends now
                self.drop()
            yield report

    def drop(self) -> None:
        """End the running step, or the one that waits; nothing of it counts any more."""
        self._queued = None
        if self._running:
            self._running.request_end()
            self._ending.append(self._running)
            self._running = None

    def end_all(self) -> None:
        """End all processes and wait for them."""
        self.drop()
        for step in self._ending:
            step.request_end(STOP_LIMIT_S)
        pause = threading.Event()
        while self._ending:
            self._ending = [step for step in self._ending if not step.has_ended()]
            if self._ending:
                pause.wait(POLL_S)
