"""What is remembered of an episode: where it goes and why. Plain; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

CACHE_SIZE = 16384


@dataclass(frozen=True, slots=True)
class StoredPlacement:
    """
    Where an episode goes, and why; the reason is empty when it is as the split says.

    `split_percent` is None in a router of one slot. `moved`: it had to leave another slot.
    """

    bucket: int
    slot: str
    split_percent: int | None
    moved: bool
    reason: str


@lru_cache(CACHE_SIZE)
def stored_placement(
    key_bucket: int, slot: str, split_percent: int | None, moved: bool, reason: str
) -> StoredPlacement:
    """Return one object for all that were decided alike: millions of episodes share hundreds."""
    return StoredPlacement(key_bucket, slot, split_percent, moved, reason)
