# SPDX-License-Identifier: Apache-2.0
"""
The placement of each episode, kept for the whole episode, across split changes and restarts.

Beyond the capacity, the least recently used placements are removed. No ROS; called under
RoutingTable.lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.limits import SINGLE_SLOT
from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.storage.records import stored_placement, StoredPlacement
from lerobot_serve.trace.format.records import RecordIds

REASON_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Placement:
    """
    The placement of an episode, as published in RoutingDecision.

    routing_key         key of the bucket: the episode_id, or the request id without one
    split_percent       split at the time of placement; None in a router with one slot
    sticky              the episode was placed before and keeps its slot
    missing_episode_id  the request has no episode_id: the placement holds for this request
    moved               the episode has left a slot; with this request unless sticky
    split_version       revision of the split in a shared state; 0 without one
    reason              why the slot is not that of the split; empty when it is
    """

    routing_key: str
    bucket: int
    slot: str
    split_percent: int | None
    sticky: bool = False
    missing_episode_id: bool = False
    moved: bool = False
    reason: str = ''
    split_version: int = 0


class PlacementWriter(Protocol):
    """Stores placements without waiting for the disk; see storage.writer."""

    def place(self, episode_id: str, decided: StoredPlacement | None) -> None: ...

    def together(self) -> AbstractContextManager[object]:
        """Write what is queued in the block in one transaction."""


class PlacementTable:
    """The placements of up to `capacity` episodes; `known` are those of the store."""

    def __init__(
        self,
        capacity: int,
        known: Mapping[str, StoredPlacement] | None = None,
        writer: PlacementWriter | None = None,
    ) -> None:
        self._capacity, self._writer = capacity, writer
        self._placed: OrderedDict[str, StoredPlacement] = OrderedDict(known or {})
        # None in a router with one slot
        self.split_percent: int | None = None
        # revision of the split in a shared state; 0 without one, and until it is known
        self.split_version = 0

    def __len__(self) -> int:
        return len(self._placed)

    def stored_together(self) -> AbstractContextManager[object]:
        """
        Store the placements of the block and the begins and ends of episodes in it in one
        transaction: one without the other would not count.
        """
        return self._writer.together() if self._writer else nullcontext()

    def find(self, episode_id: str) -> Placement | None:
        """Return a known placement without marking it as used; None without one."""
        known = self._placed.get(episode_id)
        return to_placement(episode_id, known, sticky=True) if known else None

    def keep(self, episode_id: str) -> Placement | None:
        """
        Return the placement of a known episode and mark it as used; None for an episode that is
        unknown or whose slot does not exist with this split.
        """
        known = self._placed.get(episode_id)
        if known is None or (known.slot == SINGLE_SLOT) != (self.split_percent is None):
            return None
        self._placed.move_to_end(episode_id)
        return to_placement(episode_id, known, sticky=True)

    def add(self, episode_id: str, key: str, slot_name: str, reason: str = '') -> Placement:
        """
        Place an episode for which `keep` has just returned None; `key` and `reason` as in
        Placement. Without an episode_id each request is placed separately and nothing is stored.
        """
        known = self._placed.get(episode_id)
        if known:
            reason = reason or f'there is no slot {known.slot} any more'
        decided = stored_placement(
            bucket(key),
            slot_name,
            self.split_percent,
            known is not None,
            encodable_text(reason, REASON_LIMIT),
            self.split_version,
        )
        if episode_id:
            self._remember(episode_id, decided)
        return to_placement(key, decided, missing_episode_id=not episode_id)

    def move(self, episode_id: str, slot_name: str, reason: str) -> Placement:
        """Move an episode to another slot until its end; return the new placement."""
        known = self._placed.get(episode_id)
        # share and version are those of its start: no split moves a running episode. A removed
        # episode counts as placed with the current split
        split_percent = known.split_percent if known else self.split_percent
        split_version = known.split_version if known else self.split_version
        decided = stored_placement(
            bucket(episode_id),
            slot_name,
            split_percent,
            True,
            encodable_text(reason, REASON_LIMIT),
            split_version,
        )
        self._remember(episode_id, decided)
        return to_placement(episode_id, decided)

    def adopt(self, episode_id: str, decided: StoredPlacement) -> None:
        """Take over the placement of another router: the first one holds, or the latest move."""
        known = self._placed.get(episode_id)
        if known is None or decided.moved or not known.moved:
            self._place(episode_id, decided)

    def _remember(self, episode_id: str, decided: StoredPlacement) -> None:
        if self._writer:
            self._writer.place(episode_id, decided)
        self._place(episode_id, decided)

    def _place(self, episode_id: str, decided: StoredPlacement) -> None:
        self._placed[episode_id] = decided
        self._placed.move_to_end(episode_id)
        while len(self._placed) > self._capacity:
            forgotten, _ = self._placed.popitem(last=False)
            if self._writer:
                self._writer.place(forgotten, None)


def request_id(ids: RecordIds) -> str:
    """Return the key of a request without an episode."""
    return f'{ids.client_id}:{ids.session_epoch}:{ids.seq}'


def to_placement(
    key: str, known: StoredPlacement, *, sticky: bool = False, missing_episode_id: bool = False
) -> Placement:
    """Return the published form of a stored placement."""
    return Placement(
        key,
        bucket=known.bucket,
        slot=known.slot,
        split_percent=known.split_percent,
        sticky=sticky,
        missing_episode_id=missing_episode_id,
        moved=known.moved,
        reason=known.reason,
        split_version=known.split_version,
    )
