# SPDX-License-Identifier: Apache-2.0
"""
What other threads ask of a learner: deposits, and calls that wait for an answer. Any thread puts,
the thread `rounds` takes; `fileno` can be read while something waits.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
import contextlib
from dataclasses import dataclass, field
from enum import Enum
import os
import threading

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.learner.versions import CanaryNews

# episodes that wait for the disk; a recorder announces its last thousand at once
WAITING_LIMIT = 20_000
ANSWER_LIMIT_S = 5.0


class Command(Enum):
    """What a person asks for."""

    START = 'start_round'
    PAUSE = 'pause'
    RESUME = 'resume'


Answer = tuple[bool, str]


@dataclass(slots=True)
class Call:
    """A command and its answer."""

    command: Command
    answer: Future[Answer] = field(default_factory=Future)


# Malformed: an announcement that breaks a rule
Deposit = RecordedEpisode | CanaryNews | Malformed | Call


class Requests:
    """See the module. `overflow` counts what found no room."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Deposit] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.overflow = 0

    def fileno(self) -> int:
        return self._event

    def put(self, deposit: Deposit) -> None:
        """Never waits."""
        with self._lock:
            if len(self._waiting) >= WAITING_LIMIT:
                self.overflow += 1
                return
            self._waiting.append(deposit)
            self._wake()

    def wake(self) -> None:
        """Let the thread look again."""
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        if self._event >= 0:
            os.eventfd_write(self._event, 1)

    def call(self, command: Command) -> Answer:
        """Return the answer of the thread `rounds`."""
        call = Call(command)
        self.put(call)
        try:
            return call.answer.result(ANSWER_LIMIT_S)
        except TimeoutError:
            return False, (
                f'no answer within {ANSWER_LIMIT_S:g} s; see the state of the learner, and call '
                'again'
            )

    def take(self, most: int) -> list[Deposit]:
        """Return the oldest deposits."""
        with self._lock:
            if self._event >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event)
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            if self._waiting:
                self._wake()
            return taken

    def close(self) -> None:
        """Answer what waits; nothing is put any more."""
        with self._lock:
            left, self._waiting = self._waiting, deque()
            os.close(self._event)
            self._event = -1
        for each in left:
            if isinstance(each, Call):
                each.answer.set_result((False, 'the learner ends'))
