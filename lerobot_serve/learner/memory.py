# SPDX-License-Identifier: Apache-2.0
"""
What survives the end of a learner's process: episodes by their hash, rounds, versions, rejected
versions, and whether a person paused it. One thread at a time; each method is one transaction.

A version counts as published, and its episodes as used, in the transaction that ends its round:
killed before it, the round is begun again; after it, nothing is.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import msgspec
from msgspec import Struct

from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.experience.recorded_episode import word_of
from lerobot_serve.learner.database import Database
from lerobot_serve.learner.selection import Place
from lerobot_serve.learner.versions import Version

PAUSED, RUNNING, YES = 'paused', 'running', 'yes'
# of an episode that is announced again and again under other paths
PLACE_LIMIT = 16
USED = """
    SELECT sha256 FROM round_episodes JOIN rounds ON rounds.number = round_episodes.round
    WHERE rounds.end = 'published'
"""


class Learned(Enum):
    """What an announced episode is."""

    NEW = 'new'
    # the same bag at the same place
    REPEATED = 'repeated'
    # a copy of a bag that is known, at another place
    DOUBLE = 'double'
    # another bag of the same episode: the first one counts
    OTHER_BAG = 'other_bag'
    # another bag of the same episode, which has its outcome: a cut one lacks it
    REPLACED = 'replaced'


class RoundEnd(Enum):
    """How a round ended; OPEN: it has not."""

    OPEN = ''
    PUBLISHED = 'published'
    FAILED = 'failed'
    GIVEN_UP = 'given_up'


class RoundRecord(Struct, frozen=True, array_like=True):
    """
    One round, a row of the table. `trained` is the fingerprint of its policy in the folder
    `output`, empty before it is trained; `deaths` counts processes that ended during it.
    """

    number: int
    attempt: int = 1
    deaths: int = 0
    parent: str = ''
    dataset_sha256: str = ''
    trained: str = ''
    output: str = ''
    end: RoundEnd = RoundEnd.OPEN
    text: str = ''


class Memory(Database):
    """See the module. `open_round` is the round that was begun and has not ended."""

    # episodes

    def learn(self, episode: RecordedEpisode) -> Learned:
        """Keep an episode, once. Raises MemoryNotWritten."""
        with self.transaction():
            if not self._knows(episode.sha256):
                return self._add(episode)
            return self._add_place(episode)

    def replace(self, sha256: str, episode: RecordedEpisode) -> bool:
        """
        Keep another bag of an episode instead; return whether no round was given the one before.
        Raises MemoryNotWritten.
        """
        with self.transaction():
            query = 'SELECT 1 FROM round_episodes WHERE sha256 = ?'
            if self.rows(query, sha256):
                return False
            self.change('DELETE FROM places WHERE sha256 = ?', sha256)
            self.change('DELETE FROM episodes WHERE sha256 = ?', sha256)
            self._add(episode)
        return True

    def _knows(self, sha256: str) -> bool:
        return bool(self.rows('SELECT 1 FROM episodes WHERE sha256 = ?', sha256))

    def _add(self, episode: RecordedEpisode) -> Learned:
        changed = self.change(
            'INSERT OR IGNORE INTO episodes VALUES (?, ?, ?, ?, ?)',
            episode.sha256,
            episode.client_id,
            episode.episode_id,
            word_of(episode.outcome),
            msgspec.json.encode(episode).decode(),
        )
        if not changed:
            return Learned.OTHER_BAG
        self._add_place(episode)
        return Learned.NEW

    def _add_place(self, episode: RecordedEpisode) -> Learned:
        if len(self.places(episode.sha256)) >= PLACE_LIMIT:
            # the first ones stay: those of its recorder and of the folders
            return Learned.REPEATED
        changed = self.change(
            'INSERT OR IGNORE INTO places VALUES (?, ?, ?)',
            episode.sha256,
            episode.host,
            episode.path,
        )
        return Learned.DOUBLE if changed else Learned.REPEATED

    def places(self, sha256: str) -> list[Place]:
        """Return where the copies of a bag are."""
        rows = self.rows('SELECT host, path FROM places WHERE sha256 = ?', sha256)
        return [Place(*row) for row in rows]

    def episodes(self) -> list[RecordedEpisode]:
        """Return all episodes, in the order of their names."""
        rows = self.rows('SELECT content FROM episodes ORDER BY client_id, episode_id')
        return [msgspec.json.decode(content, type=RecordedEpisode) for (content,) in rows]

    def used(self) -> set[str]:
        """Return the hashes of the episodes behind any published version."""
        return {sha256 for (sha256,) in self.rows(USED)}

    def used_by(self, rounds: Collection[int]) -> set[str]:
        """Return the hashes of the episodes of some rounds."""
        return {
            sha256
            for number in rounds
            for (sha256,) in self.rows('SELECT sha256 FROM round_episodes WHERE round = ?', number)
        }

    # rounds

    @property
    def open_round(self) -> RoundRecord | None:
        found = self._rounds("WHERE end = ''")
        return found[-1] if found else None

    @property
    def last_round(self) -> RoundRecord | None:
        found = self._rounds('ORDER BY number DESC LIMIT 1')
        return found[0] if found else None

    def _rounds(self, condition: str) -> list[RoundRecord]:
        rows = self.rows(f'SELECT * FROM rounds {condition}')
        return msgspec.convert(rows, list[RoundRecord])

    def begin_round(self, parent: str) -> RoundRecord:
        """Begin a round, or the open one again from its beginning. Raises MemoryNotWritten."""
        with self.transaction():
            last, again = self.last_round, self.open_round
            if again:
                record = RoundRecord(again.number, again.attempt + 1, again.deaths, parent)
            else:
                record = RoundRecord(last.number + 1 if last else 1, parent=parent)
            self.change('DELETE FROM round_episodes WHERE round = ?', record.number)
            self.change(
                'INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)',
                *msgspec.to_builtins(record),
            )
        return record

    def set_dataset(self, number: int, dataset_sha256: str, episodes: Collection[str]) -> None:
        """Note what a round trains on. Raises MemoryNotWritten."""
        with self.transaction():
            self.change(
                'UPDATE rounds SET dataset_sha256 = ? WHERE number = ?', dataset_sha256, number
            )
            self.change('DELETE FROM round_episodes WHERE round = ?', number)
            self.change_many(
                'INSERT INTO round_episodes VALUES (?, ?)',
                [(number, sha256) for sha256 in sorted(episodes)],
            )

    def set_trained(self, number: int, fingerprint: str, output: str) -> None:
        """Note that the policy of a round is whole in a folder. Raises MemoryNotWritten."""
        with self.transaction():
            self.change(
                'UPDATE rounds SET trained = ?, output = ? WHERE number = ?',
                *(fingerprint, output, number),
            )

    def begin_process(self) -> RoundRecord | None:
        """
        Return the open round; a process that did not end in an orderly way counts as a death of
        it. Raises MemoryNotWritten.
        """
        with self.transaction():
            if self._setting(RUNNING):
                self.change("UPDATE rounds SET deaths = deaths + 1 WHERE end = ''")
            self._set(RUNNING, True)
        return self.open_round

    def set_running(self, is_running: bool) -> None:
        """Note that the process ends in an orderly way. Raises MemoryNotWritten."""
        with self.transaction():
            self._set(RUNNING, is_running)

    def set_published(self, number: int, version_id: str) -> None:
        """End a round with a version. Raises MemoryNotWritten."""
        with self.transaction():
            self.change(
                'INSERT INTO versions SELECT ?, parent, number FROM rounds WHERE number = ?',
                *(version_id, number),
            )
            self._end(number, RoundEnd.PUBLISHED, '')

    def end_round(self, number: int, end: RoundEnd, text: str) -> None:
        """End a round without a version. Raises MemoryNotWritten."""
        with self.transaction():
            self._end(number, end, text)

    def _end(self, number: int, end: RoundEnd, text: str) -> None:
        self.change(
            'UPDATE rounds SET end = ?, text = ? WHERE number = ?', end.value, text, number
        )

    # versions

    def versions(self) -> list[Version]:
        """Return the published versions in the order of their rounds."""
        rows = self.rows('SELECT id, parent, round FROM versions ORDER BY round')
        return [Version(*row) for row in rows]

    def has_published(self, version_id: str) -> bool:
        return any(each.id == version_id for each in self.versions())

    def rejected(self) -> dict[str, str]:
        """Return the digests of rejected policies, with the reasons."""
        return dict(self.rows('SELECT digest, text FROM rejected'))

    def reject(self, policy: str, text: str) -> bool:
        """Keep that a policy was rolled back; return whether that is new."""
        with self.transaction():
            changed = self.change(
                'INSERT OR IGNORE INTO rejected VALUES (?, ?)', digest_of(policy), text
            )
        return bool(changed)

    def accept(self, policy: str) -> bool:
        """Keep that a policy was promoted, also after a rollback; return whether that is new."""
        digest = digest_of(policy)
        with self.transaction():
            lifted = self.change('DELETE FROM rejected WHERE digest = ?', digest)
            promoted = self.change('INSERT OR IGNORE INTO promoted VALUES (?)', digest)
        return bool(lifted or promoted)

    def follow(self, champion: str, watched: str) -> bool:
        """
        Keep that slot a serves a policy, and that versions of later rounds do not have its place,
        but for the one that is `watched`; return whether that is new.
        """
        rounds = {digest_of(each.id): each.round for each in self.versions()}
        digest = digest_of(champion)
        first = rounds.get(digest, 0)
        later = {each for each, number in rounds.items() if number > first}
        later -= {digest_of(watched)}
        with self.transaction():
            dropped = sum(
                self.change('DELETE FROM promoted WHERE digest = ?', each)
                for each in sorted(later & self.promoted())
            )
            added = digest in rounds and self.change(
                'INSERT OR IGNORE INTO promoted VALUES (?)', digest
            )
        return bool(dropped or added)

    def promoted(self) -> frozenset[str]:
        """
        Return the digests of policies that were promoted and may still have all episodes, rolled
        back later or not.
        """
        return frozenset(digest for (digest,) in self.rows('SELECT * FROM promoted'))

    # the intent of a person

    @property
    def is_paused(self) -> bool:
        return self._setting(PAUSED)

    def set_paused(self, is_paused: bool) -> None:
        """Keep the intent of a person. Raises MemoryNotWritten."""
        with self.transaction():
            self._set(PAUSED, is_paused)

    def _setting(self, name: str) -> bool:
        rows = self.rows('SELECT value FROM settings WHERE name = ?', name)
        return rows == [(YES,)]

    def _set(self, name: str, is_set: bool) -> None:
        self.change('INSERT OR REPLACE INTO settings VALUES (?, ?)', name, YES if is_set else '')
