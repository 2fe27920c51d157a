# SPDX-License-Identifier: Apache-2.0
"""
The records of a store, and the handling of damage. Pure.

The key of a decision is its kind and name:

    parameter  NAME                  value, file, when, by: a parameter set live
    drain      SLOT                  text (empty: no drain), now; one row per slot
    verdict    POLICY or slot:NAME   verdict, text, now, when; see slot.VerdictRecords
    canary     (empty)               the snapshot of the canary

Damage fails closed: an unreadable decision bars the candidate slot for any policy, and an
unreadable drain drains its slot. LIFT_VERDICT and RESTORE end these.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from msgspec import Struct

from lerobot_serve.contract.limits import SLOTS
from lerobot_serve.files.load import rule
from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS, PolicyVerdict

K = TypeVar('K')
DecisionKey = tuple[str, str]
# episode, begin or end, arm of the rollout in which it began
EpisodeRow = tuple[str, str, str]
# what begins an episode; all others end one
BEGUN = 'begun'
# size of the cache with which equal placements share one object, to save memory
CACHE_SIZE = 16384
PARAMETER, DRAIN, VERDICT, CANARY = 'parameter', 'drain', 'verdict', 'canary'
CANDIDATE_SLOT = 'slot:b'
SPLIT, ROLLOUT = (PARAMETER, 'split_percent'), (CANARY, '')
NO_DRAIN: dict[str, Any] = {'text': '', 'now': False}
# the revision that a decision builds on which holds in any case
NEWEST = 2**62
# of a stored rollout: what is in its counts
COUNTED, COUNTED_UNTIL = 'shared', 'counted_until'
WITHHOLDING_VERDICTS = tuple(verdict.value for verdict in BARRING_VERDICTS)
KNOWN_VERDICTS = tuple(verdict.value for verdict in PolicyVerdict)


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


def counted_until(rollout: Any) -> int:
    """Return the number of the last begin or end that is in the counts of a stored rollout."""
    counted = rollout.get(COUNTED) if isinstance(rollout, dict) else None
    found = counted.get(COUNTED_UNTIL) if isinstance(counted, dict) else None
    return found if type(found) is int else 0


def default_decisions() -> dict[DecisionKey, Any]:
    """Return the decisions of a new store."""
    return {(DRAIN, slot): dict(NO_DRAIN) for slot in SLOTS}


@dataclass(frozen=True, slots=True)
class StoredPlacement:
    """
    The slot of an episode, and the reason if it is not the slot of the split.

    `split_percent` is None in a router with one slot; `moved`: the episode has left another slot.
    `split_version` is the revision of the shared state that it was made under, 0 without one.
    """

    bucket: int
    slot: str
    split_percent: int | None
    moved: bool
    reason: str
    split_version: int = 0


stored_placement = lru_cache(CACHE_SIZE)(StoredPlacement)


@dataclass(slots=True)
class Batch:
    """
    Rows to write in one transaction; None deletes a row. `episodes` have their numbers.

    For a store that routers share: `bases`, the revisions that decisions build on, without one
    they hold in any case; `of_rollout`, the keys of decisions that go with that of the rollout.
    The store removes what is written.
    """

    decisions: dict[DecisionKey, Any] = field(default_factory=dict)
    shadow: dict[str, Any] = field(default_factory=dict)
    placements: dict[str, StoredPlacement | None] = field(default_factory=dict)
    episodes: list[tuple[int, EpisodeRow]] = field(default_factory=list)
    of_rollout: set[DecisionKey] = field(default_factory=set)
    bases: dict[DecisionKey, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.decisions or self.shadow or self.placements or self.episodes)

    def clear(self) -> None:
        """Remove the rows, which are written."""
        self.decisions, self.shadow, self.placements, self.episodes = {}, {}, {}, []

    @property
    def must_be_on_disk(self) -> bool:
        """Whether a power cut may take nothing of it: a decision, or the end of an episode."""
        return bool(self.decisions) or any(what != BEGUN for _, (_, what, _) in self.episodes)


@dataclass(slots=True)
class StoreContent:
    """
    The undamaged content of a store. `episodes` are the newest begins and ends, with their
    numbers.
    """

    decisions: dict[DecisionKey, Any] = field(default_factory=default_decisions)
    shadow: dict[str, Any] = field(default_factory=dict)
    placements: OrderedDict[str, StoredPlacement] = field(default_factory=OrderedDict)
    episodes: list[tuple[int, EpisodeRow]] = field(default_factory=list)

    def batch(self) -> Batch:
        """Return the whole content as a batch."""
        return Batch(
            dict(self.decisions), dict(self.shadow), dict(self.placements), list(self.episodes)
        )


@dataclass(slots=True)
class StoreDamage:
    """
    Descriptions of damage. `keys` are the readable keys of changed decisions; `unsealed`:
    decisions were changed or are missing.
    """

    texts: list[str] = field(default_factory=list)
    keys: list[DecisionKey] = field(default_factory=list)
    unsealed: bool = False

    def __bool__(self) -> bool:
        return bool(self.texts)

    @property
    def text(self) -> str:
        return '; '.join(self.texts)[:500]


def update_rows(known: dict[K, Any], written: Mapping[K, Any]) -> None:
    """Update `known` with written rows; None deletes a row."""
    known.update(written)
    for key in [key for key, value in written.items() if value is None]:
        known.pop(key, None)


def readable_content(damage: StoreDamage) -> StoreContent:
    """Return the content of a new store without decisions that cannot be read."""
    content = StoreContent()
    for key in damage.keys:
        content.decisions.pop(key, None)
    return content


def fail_closed(content: StoreContent, damage: StoreDamage, when: str) -> None:
    """Add drains and verdicts for decisions that the damage leaves unknown."""
    for slot in SLOTS:
        if (DRAIN, slot) not in content.decisions:
            text = 'state store damaged, drain unknown; RESTORE ends the drain'
            content.decisions[DRAIN, slot] = {'text': text, 'now': True}
    if not damage.unsealed:
        return
    barred = {CANDIDATE_SLOT, *(name for kind, name in damage.keys if kind == VERDICT)}
    for name in barred:
        content.decisions[VERDICT, name] = {
            'verdict': 'damaged',
            'text': f'state store damaged ({when}): {damage.text}',
            'now': True,
            'when': when,
        }
