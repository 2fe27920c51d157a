# SPDX-License-Identifier: Apache-2.0
"""The messages of the last seconds, bounded in time and bytes. Pure; the writing thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lerobot_serve.tools.recorder.strategies.strategy_writer import SortedMessage


class MemoryRing:
    """`evicted` counts messages that had to go before their time, because of `limit_bytes`."""

    def __init__(self, before_s: float, limit_bytes: int) -> None:
        self._before_s, self._limit_bytes = before_s, limit_bytes
        self._kept: deque[tuple[float, SortedMessage]] = deque()
        self.bytes = self.evicted = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, message: SortedMessage, now_s: float) -> None:
        """Keep a message; the oldest ones go."""
        self.expire(now_s)
        self._kept.append((now_s, message))
        self.bytes += len(message.message.data)
        while self.bytes > self._limit_bytes:
            self._remove()
            self.evicted += 1

    def expire(self, now_s: float) -> None:
        """Forget what is too old."""
        while self._kept and now_s - self._kept[0][0] > self._before_s:
            self._remove()

    def _remove(self) -> None:
        self.bytes -= len(self._kept.popleft()[1].message.data)

    def of(self, node: str) -> Iterator[SortedMessage]:
        """Yield what concerns one robot, the oldest first."""
        return (message for _, message in self._kept if message.is_of(node))
