# SPDX-License-Identifier: Apache-2.0
"""What a store of the router's state is: a SQLite file, or PostgreSQL for several routers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lerobot_serve.router.storage.batch import Batch
from lerobot_serve.router.storage.content import DecisionKey, StoreContent, StoreDamage
from lerobot_serve.state_folder import FolderLock


class StoreRefused(Exception):
    """A store that cannot be used and is not changed; the text has the reason and the remedy."""


class StoreAway(StoreRefused):
    """A store that cannot be reached now; it may be there later."""


class StoreUnwritable(OSError):
    """A batch that cannot be written now; it is written again later."""


class DecisionConflict(Exception):
    """Another router has changed the rollout since this one read it: nothing is written."""


class StateStore(Protocol):
    """
    `content` is what was read at the start, `damage` what of it is not readable, `failure` why the
    store cannot be written now, empty when it can, `name` what the texts call it, `lock` that of
    the router's state folder, which ends with `close`.
    """

    content: StoreContent
    damage: StoreDamage
    failure: str
    lock: FolderLock | None
    # in a store that routers share: revisions of the decisions in `content`, and of the own ones
    known: dict[DecisionKey, int]
    written: dict[DecisionKey, int]

    @property
    def name(self) -> str: ...

    @property
    def is_shared(self) -> bool:
        """Whether other routers write the same state."""

    def write(self, batch: Batch) -> None:
        """
        Write a batch, its decisions in one transaction. One thread at a time. Raises OSError,
        sqlite3.Error and DecisionConflict.
        """

    def close(self) -> None:
        """Release the store."""


@runtime_checkable
class SharedStore(Protocol):
    """
    What a store that routers share has beside: `router` names this run of the router, `written`
    has the revisions of its decisions, the others are of the content.
    """

    router: str
    written: dict[DecisionKey, int]
    canary_revision: int
