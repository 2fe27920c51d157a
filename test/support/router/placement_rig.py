# SPDX-License-Identifier: Apache-2.0
"""Place an episode in a table as the router does: keep it, or choose a slot and add it."""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.router.placement.placement_table import Placement, PlacementTable
from lerobot_serve.router.placement.split import bucket, slot

# slot of the split -> chosen slot, and why it differs
SlotChooser = Callable[[str], tuple[str, str]]


def follow_split(slot_name: str) -> tuple[str, str]:
    """Choose the slot of the split."""
    return slot_name, ''


def place(
    table: PlacementTable,
    episode_id: str,
    request_id: str,
    split_percent: int | None,
    choose: SlotChooser = follow_split,
) -> Placement:
    """Return the placement of an episode. Raises what `choose` raises."""
    table.split_percent = split_percent
    kept = table.keep(episode_id)
    if kept:
        return kept
    key = episode_id or request_id
    return table.add(episode_id, key, *choose(slot(bucket(key), split_percent)))
