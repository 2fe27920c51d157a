"""What is remembered of an episode: where it goes and why. Plain; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

SHARED_LIMIT = 16384


@dataclass(frozen=True, slots=True)
class Decision:
    """
    Where an episode goes, and why; the reason is empty when it is as the split says.

    `split_percent` is None in a router of one slot. `moved`: it had to leave another slot.
    """

    bucket: int
    slot: str
    split_percent: int | None
    moved: bool
    reason: str


@lru_cache(SHARED_LIMIT)
def decision(
    key_bucket: int, slot: str, split_percent: int | None, moved: bool, reason: str
) -> Decision:
    """Return one object for all that were decided alike: millions of episodes share hundreds."""
    return Decision(key_bucket, slot, split_percent, moved, reason)
