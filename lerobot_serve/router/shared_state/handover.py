# SPDX-License-Identifier: Apache-2.0
"""
What comes along when a router changes its state: from its file to a shared state, back, or to
another site. Pure.

A file in the state folder names the shared state that the router used last; without it, that was
`router.sqlite`. Decisions come along by themselves only from a file into a shared state that has
none. Otherwise a start is refused where the new state lacks some; `state_import` answers that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lerobot_serve.router.storage.decisions import BY_FILE
from lerobot_serve.router.storage.records import (
    Batch,
    CANARY,
    COUNTED,
    COUNTED_UNTIL,
    counted_until,
    DecisionKey,
    DRAIN,
    PARAMETER,
    ROLLOUT,
    StoreContent,
    VERDICT,
    withholding,
)
from lerobot_serve.router.storage.store import Store

# values of state_import
ASK, LAST, NONE = 'ask', 'last', 'none'
TEXT_LIMIT = 500
Decisions = Mapping[DecisionKey, Any]


def decided(decisions: Decisions) -> dict[DecisionKey, Any]:
    """Return what operators and rollouts have decided, without what files say."""
    return {key: row for key, row in decisions.items() if row and _is_decided(key[0], row)}


def _is_decided(kind: str, row: Mapping[str, Any]) -> bool:
    if kind == PARAMETER:
        return not row['by'].startswith(BY_FILE)
    if kind == DRAIN:
        return bool(row['text'])
    return kind == VERDICT or bool(row.get('plan'))


def lost_decisions(last: Decisions, new: Decisions) -> dict[DecisionKey, Any]:
    """Return what the last state has decided and the new one does not have."""
    return {
        key: value
        for key, value in decided(last).items()
        if _comparable(value) != _comparable(new.get(key))
    }


def _comparable(value: Any) -> Any:
    """Return what two states can have in common."""
    own = ('file', COUNTED)
    if not isinstance(value, Mapping):
        return value
    return {name: each for name, each in value.items() if name not in own}


def describe(decisions: Decisions) -> str:
    """Return decisions in words."""
    words: dict[str, Callable[[str, Any], str]] = {
        PARAMETER: lambda name, row: f'{name} is {row["value"]}, set {row["by"]}',
        DRAIN: lambda name, row: f'slot {name} is drained: {row["text"]}',
        VERDICT: lambda name, row: f'{name}: {row["text"]}',
        CANARY: lambda _, row: f'the rollout is {row["state"]}',
    }
    texts = [words[kind](name, row) for (kind, name), row in decisions.items()]
    return '; '.join(texts)[:TEXT_LIMIT]


def imported(last: StoreContent, new: Store) -> tuple[Batch, Batch]:
    """
    Return what to write, the decisions last: so a new try is a whole one. Bars and drains of both
    states hold, everything else is that of the last one.
    """
    decisions = decided(last.decisions)
    holds = withholding(new.content.decisions)
    for key in holds.keys() & decisions.keys():
        if key not in withholding(decisions):
            del decisions[key]
    for key, row in decisions.items():
        if key[0] == PARAMETER:
            # what it overrides is the file of the router that starts with it
            decisions[key] = {**row, 'file': None}
    base = newest_number(new)
    rollout = decisions.get(ROLLOUT)
    uncounted = [row for number, row in last.episodes if number > counted_until(rollout)]
    if rollout:
        decisions[ROLLOUT] = {**rollout, COUNTED: {COUNTED_UNTIL: base}}
    episodes = Batch(
        shadow=dict(last.shadow),
        placements=dict(last.placements),
        episodes=list(enumerate(uncounted if rollout else [], start=base + 1)),
    )
    return episodes, Batch(decisions)


def newest_number(store: Store) -> int:
    """Return a number that begins and ends are written after."""
    numbers = [number for number, _ in store.content.episodes[-1:]]
    counted = counted_until(store.content.decisions.get(ROLLOUT))
    return max([*numbers, counted, getattr(store, 'revision', 0)])
