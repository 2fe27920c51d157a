# SPDX-License-Identifier: Apache-2.0
"""A store as a router meets it: what it holds, and what that allows."""

from __future__ import annotations

from pathlib import Path
import shutil
from typing import Any

from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.storage.address import StateAddress
from lerobot_serve.router.storage.postgres_store import PostgresStore
from lerobot_serve.router.storage.records import (
    Batch,
    DecisionKey,
    DRAIN,
    StoreContent,
    stored_placement,
    StoredPlacement,
    VERDICT,
)
from lerobot_serve.router.storage.sqlite_store import FILE, SqliteStore

POLICIES = ('one@1', 'two@2')
SLOTS = ('a', 'b', 'prod')


def placed(name: str, slot: str = 'b', reason: str = '') -> dict[str, StoredPlacement]:
    return {name: stored_placement(bucket(name), slot, 50, False, reason)}


def rolled_back(text: str = 'arm hit the table', *, now: bool = False) -> dict[str, Any]:
    return {'verdict': 'rolled_back', 'text': text, 'now': now, 'when': 'today'}


BARRED = {(VERDICT, 'two@2'): rolled_back()}


def drained(text: str = 'maintenance', *, now: bool = False) -> dict[str, Any]:
    return {'text': text, 'now': now}


def written(folder: Path, decisions: dict[DecisionKey, Any], **more: Any) -> None:
    """Write decisions as a router does, and end."""
    store = SqliteStore(folder, 100, 'then')
    store.write(Batch(dict(decisions), **more))
    store.close()


def opened(folder: Path, capacity: int = 100) -> SqliteStore:
    """Open, close and return it."""
    store = SqliteStore(folder, capacity, 'now')
    store.close()
    return store


def site_store(url: str, capacity: int = 10) -> PostgresStore:
    """Open the state of a site."""
    return PostgresStore(StateAddress(url, 'default'), 'run', '/router', capacity, 'now')


def copied(folder: Path, to: Path) -> Path:
    """Copy the files of a store that is in use, as a power cut or a backup finds them."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for file in folder.glob(f'{FILE}*'):
        shutil.copy(file, to)
    return to


def bars(content: StoreContent) -> set[tuple[str, str]]:
    """Return which policy drives no robot in which slot."""
    decisions = content.decisions
    barred = {n for kind, n in decisions if kind == VERDICT and _bars(decisions[kind, n])}
    return {
        (slot, policy)
        for slot in SLOTS
        for policy in POLICIES
        if policy in barred or f'slot:{slot}' in barred
    }


def drains(content: StoreContent) -> set[str]:
    """Return the slots that are drained."""
    decisions = content.decisions
    return {name for kind, name in decisions if kind == DRAIN and decisions[kind, name]['text']}


def _bars(row: dict[str, Any]) -> bool:
    return row['verdict'] in ('rolled_back', 'damaged')
