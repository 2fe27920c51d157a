# SPDX-License-Identifier: Apache-2.0
"""
The episodes of a learner: which are new, which a round takes, and why others are left out. What
the disk refuses waits and is tried again. The thread `rounds`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.learner.database import MemoryNotWritten
from lerobot_serve.learner.memory import Learned, Memory
from lerobot_serve.learner.selection import Availability, find_bag, is_selected

NOT_SELECTED = 'not_selected'
RETRY_S = 5.0
WAITING_LIMIT = 20_000
REPEATED, DOUBLE, OTHER_BAG, DISK_FULL = 'repeated', 'double', 'other_bag', 'disk_full'


class Stock:
    """
    See the module. `drop` counts a reason, once for each key such as the hash of an episode, and
    gets the text for a log.
    """

    def __init__(
        self,
        memory: Memory,
        host: str,
        filters: Sequence[str],
        drop: Callable[[str, str, str], None],
        log_warning: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._log_warning, self._clock, self._retry_s = log_warning, clock, 0.0
        self._waiting: deque[tuple[RecordedEpisode, bool]] = deque()
        self._memory, self._host, self._filters, self._drop = memory, host, filters, drop
        self._episodes = {each.sha256: each for each in memory.episodes()}
        self._used = memory.used()
        self._found: dict[str, Availability] = {}
        # reasons why a conversion left a bag out; it is tried again in each round
        self._refused: set[str] = set()
        # those that were given to a conversion once, ahead of a round or in it
        self._staged: set[str] = set()
        self.look_again()

    def __len__(self) -> int:
        return len(self._episodes)

    def learn(self, episode: RecordedEpisode, *, is_announced: bool) -> None:
        """Keep an episode; a search finds the same bags again, which is not counted."""
        if self._waiting:
            self._postpone(episode, is_announced)
            return
        try:
            learned = self._learn(episode)
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

    def _learn(self, episode: RecordedEpisode) -> Learned:
        """Keep an episode, once. Raises MemoryNotWritten."""
        learned = self._memory.learn(episode)
        if learned is Learned.OTHER_BAG and self._replace(episode):
            learned = Learned.REPLACED
        if learned in (Learned.NEW, Learned.REPLACED):
            self._episodes[episode.sha256] = episode
        if learned in (Learned.NEW, Learned.REPLACED, Learned.DOUBLE):
            self._refused.discard(episode.sha256)
            self._look(self._episodes[episode.sha256])
        return learned

    def _replace(self, episode: RecordedEpisode) -> bool:
        """
        Keep a bag with an outcome instead of one without, which a killed recorder cut; one that
        passes the filters may be in the dataset, and stays. Raises MemoryNotWritten.
        """
        (before,) = self.of(self.named([(episode.client_id, episode.episode_id)]))
        is_better = bool(episode.outcome) and not before.outcome
        if not is_better or is_selected(before, self._filters):
            return False
        if not self._memory.replace(before.sha256, episode):
            return False
        del self._episodes[before.sha256]
        self._found.pop(before.sha256, None)
        return True

    def _look(self, episode: RecordedEpisode) -> None:
        """Find the bag of an episode."""
        sha256 = episode.sha256
        if not is_selected(episode, self._filters):
            self._drop(NOT_SELECTED, sha256, '')
            return
        found = self._found[sha256] = find_bag(self._memory.places(sha256), self._host)
        if not found.paths and sha256 not in self._used:
            self._drop(found.reason, sha256, found.text)

    def look_again(self, *, only_missing: bool = False) -> None:
        """Find the bags again: a folder may be mounted now, or gone."""
        for sha256, episode in self._episodes.items():
            known = self._found.get(sha256)
            if not only_missing or (known and not known.paths and sha256 not in self._used):
                self._look(episode)

    def bags(self) -> list[tuple[RecordedEpisode, tuple[Path, ...]]]:
        """Return all episodes with a readable bag, also those of earlier rounds."""
        return [
            (episode, found.paths)
            for sha256, episode in self._episodes.items()
            if (found := self._found.get(sha256)) and found.paths
        ]

    def unused(self) -> list[RecordedEpisode]:
        """Return those of `bags` that no published version was trained on."""
        return [each for each, _ in self.bags() if each.sha256 not in self._used]

    def new(self) -> list[RecordedEpisode]:
        """Return those of `unused` that no conversion has refused."""
        return [each for each in self.unused() if each.sha256 not in self._refused]

    def unstaged(self) -> list[RecordedEpisode]:
        """Return those of `new` that no conversion was given since start."""
        return [each for each in self.new() if each.sha256 not in self._staged]

    def on_staged(self, hashes: Iterable[str]) -> None:
        """Note that a conversion was given these bags."""
        self._staged.update(hashes)

    def refuse(self, sha256: str, reason: str, text: str) -> None:
        """Note that a conversion left a bag out."""
        self._refused.add(sha256)
        self._drop(reason, sha256, text)

    def of(self, hashes: Sequence[str]) -> list[RecordedEpisode]:
        """Return episodes by their hashes; those of none are left out."""
        return [self._episodes[each] for each in hashes if each in self._episodes]

    def named(self, names: Iterable[tuple[str, str]]) -> list[str]:
        """Return the hashes of episodes by robot and id; unknown ones are left out."""
        hashes = {
            (each.client_id, each.episode_id): sha256 for sha256, each in self._episodes.items()
        }
        return [hashes[name] for name in names if name in hashes]

    def on_converted(self, hashes: Sequence[str]) -> list[str]:
        """Return which of these no published version was trained on."""
        self._refused -= set(hashes)
        self._staged |= set(hashes)
        return [each for each in hashes if each not in self._used]

    def on_published(self, hashes: Sequence[str]) -> None:
        self._used |= set(hashes)


def check_usable(episode: RecordedEpisode) -> None:
    """Raise ValueError for an episode without a name or full path, or with control characters."""
    for name in ('client_id', 'episode_id', 'host', 'path'):
        value = getattr(episode, name)
        if not value or not value.isprintable():
            raise ValueError(f'{name} must be printable and not empty, got {value!r:.80}')
    if not episode.path.startswith('/'):
        raise ValueError(f'path must be a full path, got {episode.path!r:.80}')
