# SPDX-License-Identifier: Apache-2.0
"""
The newest messages of a robot's inputs, for the begin of its next episode: its first control step
acts on messages that came before it. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lerobot_serve.tools.recorder.strategies.strategy_writer import SortedMessage

# how far the messages of two topics may arrive out of order
KEPT_S = 0.5
# no input of a robot file may be older
OLDEST_S = 60.0
LIMIT_BYTES = 64 << 20


class RecentInputs:
    """The messages of the last KEPT_S, and the newest one of each topic."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, SortedMessage]] = deque()
        self._newest: dict[str, tuple[float, SortedMessage]] = {}
        self._bytes = 0

    def add(self, message: SortedMessage, now_s: float) -> None:
        """Keep a message."""
        self._recent.append((now_s, message))
        self._newest[message.message.topic] = now_s, message
        self._bytes += len(message.message.data)
        while now_s - self._recent[0][0] > KEPT_S or (
            self._bytes > LIMIT_BYTES and len(self._recent) > 1
        ):
            self._bytes -= len(self._recent.popleft()[1].message.data)

    def messages(self, now_s: float) -> Iterator[SortedMessage]:
        """Yield what is kept, each message once, approximately in time order."""
        # by identity: messages of equal content are different ones
        recent = {id(message) for _, message in self._recent}
        for at_s, message in sorted(self._newest.values(), key=lambda kept: kept[0]):
            if id(message) not in recent and now_s - at_s <= OLDEST_S:
                yield message
        yield from (message for _, message in self._recent)
