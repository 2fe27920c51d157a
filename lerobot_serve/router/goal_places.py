"""
Requests without a session: slot and replica of each. Plain; the dispatcher's lock.

They follow the split, and the placement of an episode, as those of robots do. How they are
answered is held against nobody and counts in no slot: whoever sends them may send anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from lerobot_serve.router.replicas import Replica
from lerobot_serve.router.slots import Slot
from lerobot_serve.router.sticky import Placement, StickyTable
from lerobot_serve.router.tally import Tally


class NobodyReady(Exception):
    """No slot can answer; the text says why, and what to do."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        why = '; '.join(f'slot {slot.name}: {slot.text}' for slot in slots)
        super().__init__(f'no slot can answer; mend one and send the goal again ({why})')


class GoalPlaces:
    """See the module."""

    def __init__(self, slots: dict[str, Slot], sticky: StickyTable, tally: Tally) -> None:
        self._slots, self._sticky, self._tally = slots, sticky, tally

    def place(
        self, episode_id: str, request_id: str, split_percent: int
    ) -> tuple[Placement, Replica]:
        """Decide on slot and replica. Raises NobodyReady; nothing is remembered then."""
        percent = split_percent if len(self._slots) > 1 else None
        placement = self._sticky.place(episode_id, request_id, percent, self._choose)
        slot = self._slots[placement.slot]
        if not slot.can_answer:
            # only an episode that began there when somebody could
            placement = self._move(episode_id, slot)
        return placement, self._slots[placement.slot].choose()

    def _choose(self, wanted: str) -> tuple[str, str]:
        """Return where a new episode goes, and why it is not `wanted`; no reason: it is."""
        slot = self._slots[wanted]
        if slot.is_healthy:
            return wanted, ''
        others = self._others(slot)
        for other in others:
            if other.is_healthy:
                return other.name, f'slot {wanted} takes no episodes: {slot.text}'
        if slot.can_answer:
            return wanted, f'no slot is healthy; slot {wanted}: {slot.text}'
        for other in others:
            if other.can_answer:
                return other.name, f'slot {wanted} cannot answer: {slot.text}'
        raise NobodyReady(self._slots.values())

    def _move(self, episode_id: str, slot: Slot) -> Placement:
        """Take a running episode to another slot."""
        others = [other for other in self._others(slot) if other.is_healthy]
        if not others:
            raise NobodyReady(self._slots.values())
        self._tally.moved(episode_id, others[0].name)
        reason = f'slot {slot.name} cannot answer: {slot.text}'
        return self._sticky.move(episode_id, others[0].name, reason)

    def _others(self, slot: Slot) -> list[Slot]:
        return [other for other in self._slots.values() if other is not slot]
