# SPDX-License-Identifier: Apache-2.0
"""The whole bags of episodes on their way from the writing thread to the announcing one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
import threading
import time

from lerobot_serve.experience.scanning import find_folders, FoundFolders

# bags that wait to be hashed; others stay on the disk until the next start
WAITING_LIMIT = 1000
# how long bags are still hashed once the recorder ends
LAST_S = 5.0


class WholeBags:
    """`earlier` are the folders that were there when the recorder started."""

    def __init__(
        self,
        root: Path,
        *,
        limit: int = WAITING_LIMIT,
        last_s: float = LAST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """List the folders in `root`; its cut bags were completed. Raises OSError."""
        self.earlier: FoundFolders = find_folders(root)
        self._limit, self._last_s, self._clock = limit, last_s, clock
        self._waiting: deque[Path] = deque()
        self._changed = threading.Condition()
        self._over_s: float | None = None
        self.dropped = 0

    def put(self, folder: Path) -> None:
        """Add a bag that is whole and on the disk, or count it as dropped. Never waits."""
        with self._changed:
            if len(self._waiting) >= self._limit:
                self.dropped += 1
                return
            self._waiting.append(folder)
            self._changed.notify()

    def close(self) -> None:
        """Let `next` return what waits, for a while, and then nothing. Any thread."""
        with self._changed:
            if self._over_s is None:
                self._over_s = self._clock() + self._last_s
            self._changed.notify()

    @property
    def is_closing(self) -> bool:
        """Return whether `close` was called."""
        return self._over_s is not None

    @property
    def is_over(self) -> bool:
        """Return whether the time after `close` is over."""
        return self._over_s is not None and self._clock() >= self._over_s

    @property
    def left(self) -> int:
        """Return how many bags were not taken."""
        return self.dropped + len(self._waiting)

    def rest(self, time_s: float) -> None:
        """Wait, but not beyond `close`. The announcing thread."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closing, time_s)

    def next(self) -> Path | None:
        """Wait for a bag and return it; None at the end. The announcing thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.is_closing)
            return self._waiting.popleft() if self._waiting and not self.is_over else None
