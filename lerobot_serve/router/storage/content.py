"""
What a store holds, and what damage to it comes to. Pure.

A decision is found by kind and name:

    parameter  NAME          set live: value, file, when, by
    drain      SLOT          by an operator: text (empty: none), now; a row for each slot
    verdict    POLICY        or slot:NAME: verdict, text, now, when
    canary     (no name)     what canary.restore takes

Damage fails closed: a decision that cannot be read back bars the candidate, whatever its policy,
and a slot whose drain cannot be read is drained. A person lifts the one and restores the other.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from lerobot_serve.router.placement.split import SLOTS
from lerobot_serve.router.placement.stored_placement import StoredPlacement

DecisionKey = tuple[str, str]
PARAMETER, DRAIN, VERDICT, CANARY = 'parameter', 'drain', 'verdict', 'canary'
CANDIDATE_SLOT = 'slot:b'
NO_DRAIN: dict[str, Any] = {'text': '', 'now': False}


def default_decisions() -> dict[DecisionKey, Any]:
    """Return the decisions of a new store."""
    return {(DRAIN, slot): dict(NO_DRAIN) for slot in SLOTS}


@dataclass(slots=True)
class StoreContent:
    """What can be relied on."""

    decisions: dict[DecisionKey, Any] = field(default_factory=default_decisions)
    shadow: dict[str, Any] = field(default_factory=dict)
    placements: OrderedDict[str, StoredPlacement] = field(default_factory=OrderedDict)


@dataclass(slots=True)
class StoreDamage:
    """
    What cannot be relied on, in words. `keys` are the decisions whose rows changed, as far as they
    can be read; `unsealed`: decisions are missing, or changed.
    """

    texts: list[str] = field(default_factory=list)
    keys: list[DecisionKey] = field(default_factory=list)
    unsealed: bool = False

    def __bool__(self) -> bool:
        return bool(self.texts)

    @property
    def text(self) -> str:
        return '; '.join(self.texts)[:500]


def fail_closed(content: StoreContent, damage: StoreDamage, when: str) -> None:
    """Put in what the damage comes to."""
    for slot in SLOTS:
        if (DRAIN, slot) not in content.decisions:
            text = 'the store was damaged and cannot say whether it was drained; restore it'
            content.decisions[DRAIN, slot] = {'text': text, 'now': True}
    if not damage.unsealed:
        return
    barred = {CANDIDATE_SLOT, *(name for kind, name in damage.keys if kind == VERDICT)}
    for name in barred:
        content.decisions[VERDICT, name] = {
            'verdict': 'damaged',
            'text': f'the store was damaged ({when}): {damage.text}',
            'now': True,
            'when': when,
        }
