# SPDX-License-Identifier: Apache-2.0
"""
What was heard and is not yet written, and the body of the thread that writes it.

The executor deposits and never waits for the disk. The thread writes at least every FLUSH_S, so
a process that is killed loses no more than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import threading
import time
from typing import NamedTuple

from lerobot_serve.tools.bags.recording.metadata import BagTopic
from lerobot_serve.tools.bags.recording.writer import BagWriter

FLUSH_S = 0.5
# so much may wait while the disk is slow: seconds of a fleet with cameras
WAITING_LIMIT_BYTES = 256 << 20


class ReceivedMessage(NamedTuple):
    """One message on its way to the file."""

    topic: str
    data: bytes
    received_ns: int
    sent_ns: int


class WriteQueue:
    """
    `on_end` is called by the writing thread when the recording ends by itself; `ended` then says
    why. `failed` is set when that was no wish of anybody.
    """

    def __init__(
        self,
        writer: BagWriter,
        *,
        limit_bytes: int = 0,
        limit_s: float = 0.0,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Limits of 0 are none."""
        self._writer, self._on_end = writer, on_end
        self._limit_bytes, self._limit_s = limit_bytes, limit_s
        self._changed = threading.Condition()
        self._waiting: deque[BagTopic | ReceivedMessage] = deque()
        self._waiting_bytes = 0
        self._closing = False
        self.dropped = 0
        self.ended = ''
        self.failed = False

    # executor thread

    def add(self, topic: BagTopic) -> None:
        """Let the bag have a topic, before its first message."""
        self._deposit(topic, 0)

    def put(self, heard: ReceivedMessage) -> None:
        """Deposit a message; it is counted as dropped when too much waits."""
        self._deposit(heard, len(heard.data))

    def _deposit(self, item: BagTopic | ReceivedMessage, size: int) -> None:
        with self._changed:
            if self._closing or self.ended:
                # what comes behind the end is nobody's
                return
            if self._waiting_bytes + size > WAITING_LIMIT_BYTES:
                self.dropped += 1
                return
            self._waiting_bytes += size
            self._waiting.append(item)

    def close(self) -> None:
        """Let the thread write what waits, finish the file and end."""
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
                    self.ended = 'as was asked'
                elif self._limit_s and time.monotonic() - begin_s >= self._limit_s:
                    self.ended = f'after {self._limit_s:g} s'
            self._writer.close()
        except OSError as error:
            self.failed = True
            self.ended = f'{self._writer.folder} cannot be written: {error.strerror or error}'
            self._writer.give_up()
        self._on_end()

    def _write(self) -> None:
        """Write what waits, up to the limit of the file. Raises OSError."""
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
            self.ended = f'at {self._limit_bytes / 1e6:g} MB'

    def _is_full(self) -> bool:
        return 0 < self._limit_bytes <= self._writer.size_bytes
