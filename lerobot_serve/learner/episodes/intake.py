# SPDX-License-Identifier: Apache-2.0
"""
Takes announced and found episodes into the memory; what the disk refuses waits and is tried
again. The thread `rounds`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lerobot_serve.experience.recorded_episode import RecordedEpisode
from lerobot_serve.learner.episodes.stock import Stock
from lerobot_serve.learner.memory.database import MemoryNotWritten
from lerobot_serve.learner.memory.memory import Learned

RETRY_S = 5.0
WAITING_LIMIT = 20_000
REPEATED, DOUBLE, OTHER_BAG, DISK_FULL = 'repeated', 'double', 'other_bag', 'disk_full'


class EpisodeIntake:
    """See the module. `drop` counts a reason, once for each key, with a text for the log."""

    def __init__(
        self,
        stock: Stock,
        drop: Callable[[str, str, str], None],
        log_warning: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._stock, self._drop, self._log_warning = stock, drop, log_warning
        self._clock, self._retry_s = clock, 0.0
        self._waiting: deque[tuple[RecordedEpisode, bool]] = deque()

    def learn(self, episode: RecordedEpisode, *, is_announced: bool) -> None:
        """Keep an episode; a search finds the same bags again, which is not counted."""
        if self._waiting:
            self._postpone(episode, is_announced)
            return
        try:
            learned = self._stock.learn(episode)
        except MemoryNotWritten as error:
            self._log_warning(f'{error}; episodes wait')
            self._retry_s = self._clock() + RETRY_S
            self._postpone(episode, is_announced)
            return
        self._count(learned, episode, is_announced)

    def _count(self, learned: Learned, episode: RecordedEpisode, is_announced: bool) -> None:
        key = f'{episode.sha256} {episode.path}'
        if learned is Learned.REPEATED and is_announced:
            self._drop(REPEATED, '', '')
        elif learned is Learned.DOUBLE:
            self._drop(DOUBLE, key, '')
        elif learned is Learned.REPLACED:
            # the one before is counted: it passed no filter
            self._log_warning(
                f'{episode.path} has the outcome of episode {episode.episode_id!r} of '
                f'{episode.client_id!r}, and counts instead of a bag without'
            )
        elif learned is Learned.OTHER_BAG:
            text = (
                f'{episode.path} is another bag of episode {episode.episode_id!r} of '
                f'{episode.client_id!r}; the first one counts'
            )
            self._drop(OTHER_BAG, key, text)

    def _postpone(self, episode: RecordedEpisode, is_announced: bool) -> None:
        if len(self._waiting) < WAITING_LIMIT:
            self._waiting.append((episode, is_announced))
        else:
            self._drop(DISK_FULL, '', '')

    def try_again(self) -> None:
        """Keep what waits, when it is time."""
        if not self._waiting or self._clock() < self._retry_s:
            return
        waiting, self._waiting = self._waiting, deque()
        for episode, is_announced in waiting:
            self.learn(episode, is_announced=is_announced)


def check_usable(episode: RecordedEpisode) -> None:
    """Raise ValueError for an episode without a name or full path, or with control characters."""
    for name in ('client_id', 'episode_id', 'host', 'path'):
        value = getattr(episode, name)
        if not value or not value.isprintable():
            raise ValueError(f'{name} must be printable and not empty, got {value!r:.80}')
    if not episode.path.startswith('/'):
        raise ValueError(f'path must be a full path, got {episode.path!r:.80}')
