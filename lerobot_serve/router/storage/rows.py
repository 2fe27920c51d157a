# SPDX-License-Identifier: Apache-2.0
"""The rows of a store, and how they are read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
import json
from typing import Any

from lerobot_serve.contract.limits import SLOTS
from lerobot_serve.files.load import load
from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.storage.records import (
    CANARY,
    COUNTED,
    COUNTED_UNTIL,
    DecisionKey,
    FORMS,
    stored_placement,
    StoreDamage,
    StoredPlacement,
    VERDICT,
)


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


def is_news(
    revision: int, own: int, *, is_unwritten: bool, is_whole: bool, is_known: bool
) -> bool:
    """
    Return whether a decision that was read is to be applied. `own` is the revision of the last
    decision of this router on the same, 0 without one.

    `is_unwritten`: this router has decided the same since, and that is not in the state yet.
    `is_whole`: all decisions were read, because those in memory may be others. `is_known`: it says
    what memory says.
    """
    if is_unwritten or revision < own:
        # the later decision is this router's
        return False
    # what another router has decided counts also where memory says so already: its revision
    return not is_known or (revision > own and not is_whole)


def read_decisions(rows: Iterable[tuple[Any, ...]], damage: StoreDamage) -> list[DecisionRow]:
    """
    Return decisions: kind, name, value, revision, router. One that cannot be read is damage, which
    bars what it may have barred.
    """
    found = []
    for kind, name, text, revision, router in rows:
        try:
            value = _decision(kind, text)
        except ValueError as problem:
            damage.texts.append(f'the decision {kind} {name} cannot be read: {problem}')
            damage.keys.append((kind, name))
            damage.unsealed |= kind == VERDICT
            if kind != CANARY:
                continue
            # a rollout that begins anew, with nothing of before
            value = {COUNTED: {COUNTED_UNTIL: revision}}
        found.append(DecisionRow((kind, name), value, revision, router))
    return found


def _decision(kind: str, text: str | None) -> Any:
    """Return the value of a decision, None where it was taken back. Raises ValueError."""
    if text is None:
        return None
    value = json.loads(text)
    if kind not in FORMS:
        raise ValueError(f'unknown kind {kind!r}')
    load(FORMS[kind], value, '')
    return value


def read_placements(
    rows: Iterable[tuple[Any, ...]], damage: StoreDamage
) -> Iterator[tuple[str, StoredPlacement]]:
    """
    Yield placements: episode, slot, split_percent, moved, reason, split_version. One in an unknown
    slot is damage.
    """
    for episode, slot, split_percent, moved, reason, version in rows:
        if slot in SLOTS:
            yield (
                episode,
                stored_placement(
                    bucket(episode), slot, split_percent, bool(moved), reason, version
                ),
            )
        else:
            damage.texts.append(f'the placement of episode {episode} is in slot {slot!r}')


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


def to_json_line(value: Any) -> str:
    """Return a value as one line of JSON. Raises ValueError for a non-finite number."""
    return json.dumps(value, sort_keys=True, allow_nan=False)
