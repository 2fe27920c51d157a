"""
Where each episode was placed: it stays there for its whole life, whatever the split does
meanwhile.

The oldest placements are forgotten when there are too many. Owned by the executor thread.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from lerobot_serve.router.split import bucket, slot


@dataclass(frozen=True, slots=True)
class Placement:
    """One decision."""

    key: str
    bucket: int
    slot: str
    split_percent: int
    cached: bool
    degraded: bool


class StickyTable:
    """Remembers up to `capacity` episodes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._placed: OrderedDict[str, Placement] = OrderedDict()

    def __len__(self) -> int:
        return len(self._placed)

    def place(self, episode_id: str, request_id: str, split_percent: int) -> Placement:
        """
        Return where the episode goes.

        Without an episode id each request is placed on its own and nothing is remembered:
        degraded.
        """
        if not episode_id:
            return self._decide(request_id, split_percent, degraded=True)
        known = self._placed.get(episode_id)
        if known:
            self._placed.move_to_end(episode_id)
            return known
        placement = self._decide(episode_id, split_percent, degraded=False)
        self._placed[episode_id] = Placement(
            placement.key, placement.bucket, placement.slot, split_percent, True, False
        )
        while len(self._placed) > self._capacity:
            self._placed.popitem(last=False)
        return placement

    def _decide(self, key: str, split_percent: int, *, degraded: bool) -> Placement:
        number = bucket(key)
        return Placement(key, number, slot(number, split_percent), split_percent, False, degraded)
