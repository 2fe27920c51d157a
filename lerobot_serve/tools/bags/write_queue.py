# SPDX-License-Identifier: Apache-2.0
"""
Queues received messages for a writer, such as a bag; `run` is the body of the thread that writes.

The executor deposits and never waits for the writer. The thread writes at least every FLUSH_S, so
a killed recorder loses at most the messages of that time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
import threading
import time
from typing import Protocol

from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.metadata import BagTopic

FLUSH_S = 0.25
# limit of queued bytes while the disk is slow: some seconds of a fleet with cameras
WAITING_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class RecordingLimits:
    """Limits after which a recording ends by itself; 0: no limit."""

    size_bytes: int = 0
    duration_s: float = 0.0


NO_LIMITS = RecordingLimits()


class MessageWriter(Protocol):
    """What a queue writes to: a bag, or a view. One thread; all but `abort` may raise OSError."""

    @property
    def destination(self) -> str:
        """What is written, for an error."""

    @property
    def size_bytes(self) -> int:
        """What was written, for a limit of size."""

    def add_topic(self, topic: BagTopic) -> None: ...

    def write(self, message: BagMessage) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class WriteQueue:
    """
    The writing thread calls `on_end` when the recording ends by itself; `ended` is the reason, and
    `failed` is true after an error.
    """

    def __init__(
        self,
        writer: MessageWriter,
        limits: RecordingLimits = NO_LIMITS,
        *,
        on_end: Callable[[], None] = lambda: None,
        flush_s: float = FLUSH_S,
        waiting_limit_bytes: int = WAITING_LIMIT_BYTES,
    ) -> None:
        self._writer, self._on_end = writer, on_end
        self._limits = limits
        self._flush_s, self._waiting_limit_bytes = flush_s, waiting_limit_bytes
        self._changed = threading.Condition()
        self._waiting: deque[BagTopic | BagMessage] = deque()
        self._waiting_bytes = 0
        self._closing = False
        self.dropped_by_topic: Counter[str] = Counter()
        self.ended = ''
        self.failed = False

    @property
    def dropped(self) -> int:
        """How many messages were dropped because the queue was full."""
        return self.dropped_by_topic.total()

    # executor thread

    def add(self, topic: BagTopic) -> None:
        """Add a topic, before its first message."""
        self._deposit(topic, 0)

    def put(self, message: BagMessage) -> None:
        """Deposit a message, or count it as dropped if the queue is full."""
        self._deposit(message, len(message.data))

    def _deposit(self, item: BagTopic | BagMessage, size: int) -> None:
        with self._changed:
            if self._closing or self.ended:
                # the recording has ended
                return
            if self._waiting_bytes + size > self._waiting_limit_bytes:
                # a topic has no size
                self.dropped_by_topic[item.name if isinstance(item, BagTopic) else item.topic] += 1
                return
            self._waiting_bytes += size
            self._waiting.append(item)

    def close(self) -> None:
        """Make the thread write all queued messages, finish the file and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    # the writing thread

    def run(self) -> None:
        """Write until `close`, a limit, or an error of the disk."""
        begin_s = time.monotonic()
        try:
            while not self.ended:
                with self._changed:
                    closing = self._changed.wait_for(lambda: self._closing, self._flush_s)
                self._write()
                if closing:
                    self.ended = 'on request'
                elif 0 < self._limits.duration_s <= time.monotonic() - begin_s:
                    self.ended = f'after {self._limits.duration_s:g} s'
            self._writer.close()
        except OSError as error:
            self.failed = True
            why = error.strerror or error
            self.ended = f'{self._writer.destination} cannot be written: {why}'
            self._writer.abort()
        self._on_end()

    def _write(self) -> None:
        """Write the queued messages, up to the limit of the file. Raises OSError."""
        with self._changed:
            taken, self._waiting = self._waiting, deque()
            self._waiting_bytes = 0
        for item in taken:
            if isinstance(item, BagTopic):
                self._writer.add_topic(item)
            elif not self._is_full():
                self._writer.write(item)
        self._writer.flush()
        if self._is_full():
            self.ended = f'at {self._limits.size_bytes / 1e6:g} MB'

    def _is_full(self) -> bool:
        return 0 < self._limits.size_bytes <= self._writer.size_bytes
