"""
Where each episode was placed: it stays there for its whole life, whatever the split does
meanwhile, and when the router is started again.

The placements that were not used for longest are forgotten when there are too many. Plain; the
dispatcher's lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lerobot_serve.router.placement.split import bucket, SINGLE_SLOT, slot
from lerobot_serve.router.placement.stored_placement import stored_placement, StoredPlacement

# slot that the split says -> slot that it is to be, and why it is another one
SlotChooser = Callable[[str], tuple[str, str]]
REASON_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Placement:
    """
    Where an episode goes, as it is told.

    key            what the bucket is of: the episode, or the request when there is none
    split_percent  when it was placed; None in a router of one slot
    cached         it was placed before and keeps its slot
    degraded       there is no episode, this holds for one request
    moved          at some time in its life it had to leave a slot; only now, when not cached
    reason         why it is not where the split says; empty when it is
    """

    key: str
    bucket: int
    slot: str
    split_percent: int | None
    cached: bool = False
    degraded: bool = False
    moved: bool = False
    reason: str = ''


def follow_split(slot_name: str) -> tuple[str, str]:
    """Choose what the split says."""
    return slot_name, ''


class PlacementWriter(Protocol):
    """Writes placements down without waiting for the disk, as storage.writer does."""

    def place(self, episode_id: str, decided: StoredPlacement | None) -> None: ...


class PlacementTable:
    """Remembers up to `capacity` episodes, first of all those that were `known` before."""

    def __init__(
        self,
        capacity: int,
        known: Mapping[str, StoredPlacement] | None = None,
        writer: PlacementWriter | None = None,
    ) -> None:
        self._capacity, self._writer = capacity, writer
        self._placed: OrderedDict[str, StoredPlacement] = OrderedDict(known or {})
        self._split_percent: int | None = None

    def __len__(self) -> int:
        return len(self._placed)

    def find(self, episode_id: str) -> Placement | None:
        """Return where a known episode goes; to ask is not to use it."""
        known = self._placed.get(episode_id)
        return to_placement(episode_id, known, cached=True) if known else None

    def place(
        self,
        episode_id: str,
        request_id: str,
        split_percent: int | None,
        choose: SlotChooser = follow_split,
    ) -> Placement:
        """
        Return where the episode goes; `choose` has the last word on a new one.

        Without an episode id each request is placed on its own and nothing is remembered:
        degraded. Raises what `choose` raises; nothing is remembered then.
        """
        self._split_percent = split_percent
        known = self._placed.get(episode_id)
        is_gone = known is not None and (known.slot == SINGLE_SLOT) != (split_percent is None)
        if known and not is_gone:
            self._placed.move_to_end(episode_id)
            return to_placement(episode_id, known, cached=True)
        key = episode_id or request_id
        number = bucket(key)
        chosen, reason = choose(slot(number, split_percent))
        if is_gone:
            reason = reason or f'there is no slot {known.slot} any more'
        decided = stored_placement(number, chosen, split_percent, is_gone, reason[:REASON_LIMIT])
        if episode_id:
            self._remember(episode_id, decided)
        return to_placement(key, decided, degraded=not episode_id)

    def move(self, episode_id: str, slot_name: str, reason: str) -> Placement:
        """An episode has to leave its slot; it stays in the new one. It has an id."""
        known = self._placed.get(episode_id)
        # one that was forgotten meanwhile counts as placed with the present split
        split_percent = known.split_percent if known else self._split_percent
        decided = stored_placement(
            bucket(episode_id), slot_name, split_percent, True, reason[:REASON_LIMIT]
        )
        self._remember(episode_id, decided)
        return to_placement(episode_id, decided)

    def _remember(self, episode_id: str, decided: StoredPlacement) -> None:
        self._placed[episode_id] = decided
        self._placed.move_to_end(episode_id)
        if self._writer:
            self._writer.place(episode_id, decided)
        while len(self._placed) > self._capacity:
            forgotten, _ = self._placed.popitem(last=False)
            if self._writer:
                self._writer.place(forgotten, None)


def to_placement(
    key: str, known: StoredPlacement, *, cached: bool = False, degraded: bool = False
) -> Placement:
    """Return a decision as others see it."""
    return Placement(
        key,
        known.bucket,
        known.slot,
        known.split_percent,
        cached,
        degraded,
        known.moved,
        known.reason,
    )
