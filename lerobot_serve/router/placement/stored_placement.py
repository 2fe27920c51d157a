# SPDX-License-Identifier: Apache-2.0
"""The stored part of a placement. Plain data; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

CACHE_SIZE = 16384


@dataclass(frozen=True, slots=True)
class StoredPlacement:
    """
    The slot of an episode, and the reason; empty when it is the slot of the split.

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
    """Return a shared object for equal placements: millions of episodes share hundreds."""
    return StoredPlacement(key_bucket, slot, split_percent, moved, reason)
