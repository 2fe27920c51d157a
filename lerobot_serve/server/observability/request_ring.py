# SPDX-License-Identifier: Apache-2.0
"""Bounded buffer of the last raw requests and replies. Any thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
import threading

from lerobot_serve.server.inference.request_queue import QueuedRequest

REQUESTS_LIMIT = 1024
# memory of a request beside its bytes
OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class CapturedRequest:
    """A request with its raw reply, completed at `wall_s`."""

    session_id: str
    queued: QueuedRequest
    reply: bytes
    wall_s: float

    @property
    def size(self) -> int:
        return len(self.queued.raw) + len(self.reply) + OVERHEAD_BYTES


class RequestRing:
    """Holds at most `limit_bytes`, taken and unreleased requests included; drops the oldest."""

    def __init__(self, limit_bytes: int, limit: int = REQUESTS_LIMIT) -> None:
        self._limit_bytes, self._limit = limit_bytes, limit
        self._kept: deque[CapturedRequest] = deque()
        self._lock = threading.Lock()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, kept: CapturedRequest) -> None:
        """Add a request; one larger than the limit is ignored."""
        room = self._limit_bytes - kept.size
        if room < 0:
            return
        with self._lock:
            while self._kept and (self.held_bytes > room or len(self._kept) >= self._limit):
                self.held_bytes -= self._kept.popleft().size
            if self.held_bytes <= room:
                self._kept.append(kept)
                self.held_bytes += kept.size

    def take(self, session_id: str = '') -> list[CapturedRequest]:
        """
        Remove and return the requests of one session, or all, oldest first. They count until
        `release`.
        """
        with self._lock:
            taken = [
                kept for kept in self._kept if kept.session_id == session_id or not session_id
            ]
            if taken:
                rest = (
                    kept for kept in self._kept if session_id and kept.session_id != session_id
                )
                self._kept = deque(rest)
        return taken

    def release(self, taken: list[CapturedRequest]) -> None:
        """Release the memory of taken requests."""
        with self._lock:
            self.held_bytes -= sum(kept.size for kept in taken)
