# SPDX-License-Identifier: Apache-2.0
"""
Announces each episode whose bag is whole: those of the folder when the recorder starts, and then
each that ends. The announcing thread runs `run`; all that it reads is on the disk, so that a
recorder that starts again announces the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
import threading
import time

from lerobot_serve.contract.codec import encode
from lerobot_serve.experience.bag_files import NotAnEpisode
from lerobot_serve.experience.scanning import (
    BagHash,
    find_folders,
    FoundFolders,
    noted_hash,
    read_episode,
    read_hash,
    write_note,
)

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


# as many as a late subscriber gets, by qos.RECORDED_EPISODES
ANNOUNCED_LIMIT = 1000
# folders that are named in the log of a start; all are counted
NAMED_LIMIT = 20
# after each block of a hash, times what it took: a quarter of a core is left to hashing. A lower
# priority would hold up the writing thread: it waits for the interpreter, which this one may have
REST_FACTOR = 3


class _RecorderEnded(Exception):
    """The recorder ends while a bag is hashed."""


class EpisodeAnnouncer:
    """See the module. `publish` gets the CDR bytes of each announcement."""

    def __init__(
        self,
        bags: WholeBags,
        publish: Callable[[bytes], object],
        log: Callable[[str], object],
    ) -> None:
        self._bags, self._publish, self._log = bags, publish, log
        self.announced = self.skipped = 0
        # bags of the start that are not announced
        self.older = 0
        self._has_reported_disk = False
        # CPU time of the announcing thread at the end of the last rest
        self._rested_s = 0.0

    @property
    def left(self) -> int:
        """Return how many episodes of this recorder were not announced. After `run`."""
        return self._bags.left

    def run(self) -> None:
        """Announce until the bags are closed."""
        try:
            self._announce_earlier()
            while folder := self._bags.next():
                self._announce(folder)
        except _RecorderEnded:
            # its bag is on the disk for the next start
            self._bags.dropped += 1

    def _announce_earlier(self) -> None:
        found, others = self._bags.earlier
        newest = found[-ANNOUNCED_LIMIT:]
        self.older = len(found) - len(newest)
        for folder, reason in others:
            self._skip(folder, reason)
        for folder in newest:
            if self._bags.is_closing:
                return
            self._announce(folder)
        if found or others:
            older = f', {self.older} older ones are not' if self.older else ''
            self._log(
                f'{self.announced} earlier episodes are announced{older}; {self.skipped} folders '
                'are skipped'
            )

    def _announce(self, folder: Path) -> None:
        try:
            episode = read_episode(folder, self._hash)
        except NotAnEpisode as error:
            self._skip(folder, str(error))
        except OSError as error:
            self._skip(folder, f'it cannot be read: {error.strerror or error}')
        else:
            self._publish(encode(episode))
            self.announced += 1

    def _hash(self, file: Path) -> BagHash:
        """Return the hash of a bag, and keep it beside the bag. Raises NotAnEpisode, OSError."""
        if found := noted_hash(file):
            return found
        self._rested_s = time.thread_time()
        found = read_hash(file, self._on_block)
        try:
            write_note(file.parent, found)
        except OSError as error:
            self._report_disk(file, error)
        return found

    def _on_block(self, _: int) -> None:
        """Rest between two blocks. Raises _RecorderEnded once the recorder has no time left."""
        self._bags.rest(REST_FACTOR * (time.thread_time() - self._rested_s))
        self._rested_s = time.thread_time()
        if self._bags.is_over:
            raise _RecorderEnded

    def _report_disk(self, file: Path, error: OSError) -> None:
        """Log once that hashes are not kept: the next start reads the bags again."""
        if not self._has_reported_disk:
            self._has_reported_disk = True
            self._log(f'the hash of {file.name} is not kept: {error.strerror or error}')

    def _skip(self, folder: Path, reason: str) -> None:
        self.skipped += 1
        if self.skipped <= NAMED_LIMIT:
            self._log(f'{folder.name!r:.200} is not announced: {reason}')
