# SPDX-License-Identifier: Apache-2.0
"""
Choose slot and replica of a PredictChunk goal, a request without a session.

Goals follow the split, placements and eligibility.py as requests of sessions do. Their results do
not affect the health or counters of a slot. No ROS; called under the dispatcher's lock.
"""

from __future__ import annotations

from functools import partial

from lerobot_serve.router.placement.eligibility import (
    check_eligibility,
    choose_slot,
    Eligibility,
    Reachability,
    SlotUse,
)
from lerobot_serve.router.placement.episode_placement import no_slot_available
from lerobot_serve.router.placement.placement_table import Placement, PlacementTable
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import SlotStats


class GoalPlacement:
    """See the module."""

    def __init__(self, slots: dict[str, Slot], sticky: PlacementTable, stats: SlotStats) -> None:
        self._slots, self._sticky, self._stats = slots, sticky, stats

    def place(
        self, episode_id: str, request_id: str, split_percent: int, now_ns: int
    ) -> tuple[Placement, Replica]:
        """Choose slot and replica. Raises NoSlotAvailable; nothing is stored then."""
        percent = split_percent if len(self._slots) > 1 else None
        choose = partial(self._choose, now_ns)
        placement = self._sticky.place(episode_id, request_id, percent, choose)
        slot = self._slots[placement.slot]
        stay = check_eligibility(SlotUse.STAY, slot.conditions(now_ns))
        if placement.sticky and (stay.grade is Eligibility.NO or not slot.has_ready_replica):
            placement = self._move(episode_id, slot, stay.reason, now_ns) or placement
            if stay.grade is Eligibility.NO and placement.slot == slot.name:
                raise no_slot_available(self._slots.values(), f'slot {slot.name}: {stay.reason}')
        return placement, self._slots[placement.slot].choose()

    def refusal(self, slot_name: str, policy: str, now_ns: int) -> str:
        """Return why a reply of that policy is withheld; empty when it is not."""
        slot = self._slots.get(slot_name)
        if slot is None:
            return f'there is no slot {slot_name!r} any more'
        if policy != slot.policy:
            return f'the reply is of {policy}, and slot {slot.name} is {slot.policy}'
        stay = check_eligibility(SlotUse.STAY, slot.conditions(now_ns, Reachability.HEALTHY))
        return f'slot {slot.name}: {stay.reason}' if stay.grade is Eligibility.NO else ''

    def _choose(self, now_ns: int, wanted: str) -> tuple[str, str]:
        """Return the slot of a new episode and why it is not `wanted`."""
        conditions = {name: slot.conditions(now_ns) for name, slot in self._slots.items()}
        choice = choose_slot(wanted, conditions)
        if not choice.slot:
            raise no_slot_available(self._slots.values(), choice.reason)
        return choice

    def _move(self, episode_id: str, slot: Slot, why: str, now_ns: int) -> Placement | None:
        """Move a running episode to another eligible slot."""
        for other in self._slots.values():
            answer = check_eligibility(SlotUse.MOVE_IN, other.conditions(now_ns))
            if other is not slot and answer.grade is Eligibility.YES:
                self._stats.record_move(episode_id, other.name)
                reason = f'slot {slot.name} cannot reply: {why}'
                return self._sticky.move(episode_id, other.name, reason)
        return None
