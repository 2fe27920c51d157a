# SPDX-License-Identifier: Apache-2.0
"""
Queues received messages for the disk; `run` is the body of the thread that writes them.

The executor deposits and never waits for the disk. The thread writes at least every FLUSH_S, so a
killed process loses at most the messages of that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
import threading
import time
from typing import NamedTuple

from lerobot_serve.tools.bags.recording.metadata import BagTopic
from lerobot_serve.tools.bags.recording.writer import BagWriter

FLUSH_S = 0.5
# limit of queued bytes while the disk is slow: some seconds of a fleet with cameras
WAITING_LIMIT_BYTES = 256 << 20


class ReceivedMessage(NamedTuple):
    """One message that is not yet written."""

    topic: str
    data: bytes
    received_ns: int
    sent_ns: int


@dataclass(frozen=True, slots=True)
class RecordingLimits:
    """Limits after which a recording ends by itself; 0: no limit."""

    size_bytes: int = 0
    duration_s: float = 0.0


NO_LIMITS = RecordingLimits()


class WriteQueue:
    """
    The writing thread calls `on_end` when the recording ends by itself; `ended` is the reason, and
    `failed` is true after an error.
    """

    def __init__(
        self,
        writer: BagWriter,
        limits: RecordingLimits = NO_LIMITS,
        *,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._writer, self._on_end = writer, on_end
        self._limits = limits
        self._changed = threading.Condition()
        self._waiting: deque[BagTopic | ReceivedMessage] = deque()
        self._waiting_bytes = 0
        self._closing = False
        self.dropped = 0
        self.ended = ''
        self.failed = False

    # executor thread

    def add(self, topic: BagTopic) -> None:
        """Add a topic, before its first message."""
        self._deposit(topic, 0)

    def put(self, message: ReceivedMessage) -> None:
        """Deposit a message, or count it as dropped if the queue is full."""
        self._deposit(message, len(message.data))

    def _deposit(self, item: BagTopic | ReceivedMessage, size: int) -> None:
        with self._changed:
            if self._closing or self.ended:
                # the recording has ended
                return
            if self._waiting_bytes + size > WAITING_LIMIT_BYTES:
                self.dropped += 1
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
                    closing = self._changed.wait_for(lambda: self._closing, FLUSH_S)
                self._write()
                if closing:
                    self.ended = 'on request'
                elif 0 < self._limits.duration_s <= time.monotonic() - begin_s:
                    self.ended = f'after {self._limits.duration_s:g} s'
            self._writer.close()
        except OSError as error:
            self.failed = True
            self.ended = f'{self._writer.folder} cannot be written: {error.strerror or error}'
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
                self._writer.write(
                    item.topic, item.data, received_ns=item.received_ns, sent_ns=item.sent_ns
                )
        self._writer.flush()
        if self._is_full():
            self.ended = f'at {self._limits.size_bytes / 1e6:g} MB'

    def _is_full(self) -> bool:
        return 0 < self._limits.size_bytes <= self._writer.size_bytes
