# SPDX-License-Identifier: Apache-2.0
"""The rows that routers exchange through the shared state, and how they are read. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import auto, Enum
import json
from typing import Any

from lerobot_serve.contract.limits import SLOTS
from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.storage.content import (
    CANARY,
    COUNTED,
    COUNTED_UNTIL,
    DecisionKey,
    EpisodeRow,
    stored_placement,
    StoreDamage,
    StoredPlacement,
    VERDICT,
)
from lerobot_serve.router.storage.state_store import decision_problem

DECISION_COLUMNS = 'kind, name, value, revision, router'
PLACEMENT_COLUMNS = 'episode, slot, split_percent, moved, reason, split_version, revision, router'


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision; `value` is None where it was taken back."""

    key: DecisionKey
    value: Any
    revision: int
    router: str


@dataclass(frozen=True, slots=True)
class Member:
    """
    A router of the site: `router` names one run of it, `report` is its view of slots and servers.
    """

    router: str
    name: str
    report: dict[str, Any]


@dataclass(slots=True)
class Changes:
    """
    What a look at the shared state found. `is_whole`: `decisions` are all there are. `episodes`
    are those after the revision `episodes_after`, with their own.
    """

    decisions: list[DecisionRow] = field(default_factory=list)
    is_whole: bool = False
    placements: list[tuple[str, StoredPlacement]] = field(default_factory=list)
    # policy, router, record or None
    shadow: list[tuple[str, str, Any]] = field(default_factory=list)
    episodes: list[tuple[int, EpisodeRow]] = field(default_factory=list)
    episodes_after: int = 0
    # None: not known, because the state cannot be reached
    members: list[Member] | None = None
    leads: bool = False
    damage: StoreDamage = field(default_factory=StoreDamage)


class Age(Enum):
    """A decision that was read, compared with the last one of this router on the same."""

    OLDER, OWN, NEWER = auto(), auto(), auto()


def age_of(revision: int, own: int) -> Age:
    """Return the age of a revision; `own` is that of the last own decision, 0 without one."""
    return Age.OWN if revision == own else Age.OLDER if revision < own else Age.NEWER


def is_news(age: Age, *, is_unwritten: bool, is_whole: bool, is_known: bool) -> bool:
    """
    Return whether a decision that was read is to be applied.

    `is_unwritten`: this router has decided the same since, and that is not in the state yet.
    `is_whole`: all decisions were read, because those in memory may be others. `is_known`: it says
    what memory says.
    """
    if is_unwritten or age is Age.OLDER:
        # the later decision is this router's
        return False
    if age is Age.OWN or is_whole:
        return not is_known
    return True


def read_decisions(rows: Iterable[tuple[Any, ...]], damage: StoreDamage) -> list[DecisionRow]:
    """
    Return the decisions of DECISION_COLUMNS; one that cannot be read is damage, which bars what it
    may have barred.
    """
    found = []
    for kind, name, text, revision, router in rows:
        value, problem = None, ''
        if text is not None:
            try:
                value = json.loads(text)
                problem = decision_problem(kind, value)
            except ValueError as error:
                problem = str(error)
        if problem:
            damage.texts.append(f'the decision {kind} {name} cannot be read: {problem}')
            damage.keys.append((kind, name))
            damage.unsealed |= kind == VERDICT
            if kind != CANARY:
                continue
            # a rollout that begins anew, with nothing of before
            value = {COUNTED: {COUNTED_UNTIL: revision}}
        found.append(DecisionRow((kind, name), value, revision, router))
    return found


def read_placements(
    rows: Iterable[tuple[Any, ...]], damage: StoreDamage
) -> list[tuple[str, StoredPlacement]]:
    """Return the placements of PLACEMENT_COLUMNS; one in an unknown slot is damage."""
    found = []
    for episode, slot, split_percent, moved, reason, version, _, _ in rows:
        if slot not in SLOTS:
            damage.texts.append(f'the placement of episode {episode} is in slot {slot!r}')
            continue
        placed = stored_placement(bucket(episode), slot, split_percent, moved, reason, version)
        found.append((episode, placed))
    return found


def read_shadow(rows: Iterable[tuple[Any, ...]]) -> list[tuple[str, str, Any]]:
    """Return the shadow records of other routers; what cannot be read counts for nothing."""
    return [(policy, router, json_or_none(record)) for policy, router, record, _ in rows]


def json_or_none(text: str | None) -> Any:
    """Return the value of a JSON text; None for another text."""
    try:
        return json.loads(text or 'null')
    except ValueError:
        return None


def read_members(rows: Iterable[tuple[Any, ...]]) -> list[Member]:
    """Return the members with a report that can be read; another version may write others."""
    found = []
    for router, name, text in rows:
        report = json_or_none(text)
        if isinstance(report, dict):
            found.append(Member(router, name, report))
    return found


def clean(text: str) -> str:
    """Return a text that PostgreSQL can hold: no NUL, nothing that UTF-8 has not."""
    return text.encode(errors='replace').decode().replace('\0', '\N{REPLACEMENT CHARACTER}')
