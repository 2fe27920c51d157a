# SPDX-License-Identifier: Apache-2.0
"""
What a store of the router's state is: a SQLite file, or PostgreSQL for the routers of a site. One
thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, ClassVar

from lerobot_serve.router.storage.records import (
    Batch,
    DecisionKey,
    fail_closed,
    StoreContent,
    StoreDamage,
)
from lerobot_serve.state_folder import FolderLock


class StoreRefused(Exception):
    """A store that cannot be used and is not changed; the text has the reason and the remedy."""


class StoreAway(StoreRefused):
    """A store that cannot be reached now; it may be there later."""


class StoreUnwritable(OSError):
    """A batch that cannot be written now; it is written again later."""


class DecisionConflict(Exception):
    """Another router has changed the rollout since this one read it: nothing is written."""


class Store(ABC):
    """
    `content` is what was read at the start, `damage` what of it is not readable, `failure` why the
    store cannot be written now, empty when it can, `name` what the texts call it, `lock` that of
    the router's state folder, which ends with `close`.
    """

    # whether other routers write the same state
    is_shared: ClassVar[bool]
    # what the database raises
    errors: ClassVar[type[Exception]]

    def __init__(self, name: str) -> None:
        self.name, self.failure = name, ''
        self.content, self.damage = StoreContent(), StoreDamage()
        self.lock: FolderLock | None = None
        # in a store that routers share: revisions of the decisions in `content`, and of the last
        # write of each own one, for any thread
        self.known: dict[DecisionKey, int] = {}
        self.written: dict[DecisionKey, int] = {}
        self._connection: Any = None

    def write(self, batch: Batch) -> None:
        """
        Write a batch, its decisions in one transaction, and remove what is written. Raises
        StoreUnwritable; DecisionConflict when another router has changed the rollout meanwhile.
        """
        try:
            self._write(batch)
        except (OSError, self.errors) as error:
            self.failure = first_line(error)
            raise StoreUnwritable(self.failure) from error
        self.failure = ''

    @abstractmethod
    def _write(self, batch: Batch) -> None:
        """Write a batch. Raises `errors`, OSError and DecisionConflict."""

    def close(self) -> None:
        """Release the store, and the folder."""
        self._disconnect()
        if self.lock:
            self.lock.release()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            with suppress(self.errors):
                connection.close()

    def _fail_closed(self, when: str) -> None:
        """Withhold what the damage leaves unknown."""
        if self.damage:
            fail_closed(self.content, self.damage, when)


def first_line(error: Exception) -> str:
    """Return the first line of an error of a database."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
