"""The last requests and their answers, as bytes, in a memory that is bounded. Any thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
import threading

from lerobot_serve.server.inference.request_queue import QueuedRequest

REQUESTS_LIMIT = 1024
# what a request takes in memory beside its bytes
OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class CapturedRequest:
    """A request of the session `name` and its answer, which was made at `wall_s`."""

    name: str
    mail: QueuedRequest
    answer: bytes
    wall_s: float

    @property
    def size(self) -> int:
        return len(self.mail.raw) + len(self.answer) + OVERHEAD_BYTES


class RequestRing:
    """
    Never more than `limit_bytes`, with what was taken and not released yet; the oldest go first.
    """

    def __init__(self, limit_bytes: int, limit: int = REQUESTS_LIMIT) -> None:
        self._limit_bytes, self._limit = limit_bytes, limit
        self._kept: deque[CapturedRequest] = deque()
        self._lock = threading.Lock()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, kept: CapturedRequest) -> None:
        """Keep a request; one that is larger than all the room is not kept."""
        room = self._limit_bytes - kept.size
        if room < 0:
            return
        with self._lock:
            while self._kept and (self.held_bytes > room or len(self._kept) >= self._limit):
                self.held_bytes -= self._kept.popleft().size
            if self.held_bytes <= room:
                self._kept.append(kept)
                self.held_bytes += kept.size

    def take(self, name: str = '') -> list[CapturedRequest]:
        """
        Return the requests of one session, or all, oldest first. They count until they are
        released.
        """
        with self._lock:
            taken = [kept for kept in self._kept if kept.name == name or not name]
            if taken:
                rest = (kept for kept in self._kept if name and kept.name != name)
                self._kept = deque(rest)
        return taken

    def release(self, taken: list[CapturedRequest]) -> None:
        """What was taken is needed no more."""
        with self._lock:
            self.held_bytes -= sum(kept.size for kept in taken)
