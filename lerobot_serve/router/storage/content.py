# SPDX-License-Identifier: Apache-2.0
"""
The content of a store, and the consequences of damage. Pure.

A decision is found by kind and name:

    parameter  NAME          set live: value, file, when, by
    drain      SLOT          by an operator: text (empty: none), now; a row for each slot
    verdict    POLICY        or slot:NAME: verdict, text, now, when
    canary     (no name)     what canary.restore takes

Damage fails closed: a decision that cannot be read back bars the candidate, whatever its policy,
and a slot whose drain cannot be read is drained. LIFT_VERDICT and RESTORE end these.
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
    """The intact content of a store."""

    decisions: dict[DecisionKey, Any] = field(default_factory=default_decisions)
    shadow: dict[str, Any] = field(default_factory=dict)
    placements: OrderedDict[str, StoredPlacement] = field(default_factory=OrderedDict)


@dataclass(slots=True)
class StoreDamage:
    """
    Descriptions of damage. `keys` are the decisions whose rows changed, as far as they can be
    read; `unsealed`: decisions are missing, or changed.
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
    """Bar and drain what the damage leaves unknown."""
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
