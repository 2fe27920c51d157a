# SPDX-License-Identifier: Apache-2.0
"""
What a store of the router's state is, a SQLite file or PostgreSQL for several routers, and what
the decisions in it say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from msgspec import Struct

from lerobot_serve.files.load import load, Refused, rule
from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS, PolicyVerdict
from lerobot_serve.router.storage.batch import Batch
from lerobot_serve.router.storage.content import (
    CANARY,
    DecisionKey,
    DRAIN,
    PARAMETER,
    StoreContent,
    StoreDamage,
    VERDICT,
)
from lerobot_serve.state_folder import FolderLock

WITHHOLDING_VERDICTS = tuple(verdict.value for verdict in BARRING_VERDICTS)
KNOWN_VERDICTS = tuple(verdict.value for verdict in PolicyVerdict)
ONE_VERDICT = f'one of {", ".join(KNOWN_VERDICTS)}'


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


class StoredParameter(Struct):
    """A parameter that was set live, and the value that it had in the file."""

    value: Any
    file: Any
    when: str
    by: str


class StoredDrain(Struct):
    """A drain of a slot; empty: none."""

    text: str
    now: bool


class StoredVerdict(Struct):
    """A verdict on a policy or a slot."""

    verdict: Annotated[
        str, rule(KNOWN_VERDICTS.__contains__, f'one of {", ".join(KNOWN_VERDICTS)}')
    ]
    text: str
    now: bool


FORMS: dict[str, Any] = {
    PARAMETER: StoredParameter,
    DRAIN: StoredDrain,
    VERDICT: StoredVerdict,
    CANARY: dict[str, Any],
}


def withholding(decisions: Mapping[DecisionKey, Any]) -> dict[DecisionKey, Any]:
    """Return the decisions that withhold a policy or a slot: they take effect in any case."""
    return {
        (kind, name): value
        for (kind, name), value in decisions.items()
        if value
        and (
            (kind == DRAIN and value['text'])
            or (kind == VERDICT and value['verdict'] in WITHHOLDING_VERDICTS)
        )
    }


def decision_problem(kind: str, value: Any) -> str:
    """
    Return what is wrong with a decision that other programs can write, too; empty when nothing is.
    """
    if kind not in FORMS:
        return f'unknown kind {kind!r}'
    try:
        load(FORMS[kind], value, '')
    except Refused as refused:
        return str(refused)
    return ''
