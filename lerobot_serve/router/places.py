"""
Where an episode goes, and whether it has to leave. Plain; the dispatcher's lock.

A new episode goes where the split says, unless that slot takes none. A running one stays to its
end, and leaves only a slot that cannot answer it: then its next chunk says so.
"""

from __future__ import annotations

from functools import partial

from lerobot_serve.router.flights import Flight
from lerobot_serve.router.replicas import Replica
from lerobot_serve.router.robots import Robot
from lerobot_serve.router.slots import Slot
from lerobot_serve.router.sticky import Placement, StickyTable
from lerobot_serve.router.tally import Tally
from lerobot_serve.wire.schema import Flag

# which of two equally loaded replicas a robot had before decides
HABIT = 1e-3


def usable(robot: Robot, slot: Slot) -> list[Replica]:
    """Return the replicas of a slot that can answer this robot, first choice first."""
    places = robot.places.get(slot.name, ())
    return [slot.replicas[name] for name in places if slot.replicas[name].is_ready]


def suspects(robot: Robot, slot: Slot) -> list[Replica]:
    """Return those that have failed lately, which nobody asks while there is anybody else."""
    places = robot.places.get(slot.name, ())
    found = [slot.replicas[name] for name in places]
    return [replica for replica in found if replica.is_reachable and not replica.is_ready]


def takes(robot: Robot, slot: Slot) -> bool:
    """Return whether a new episode of this robot may begin there."""
    return slot.is_healthy and bool(usable(robot, slot))


def must_leave(robot: Robot, slot: Slot) -> bool:
    """Return whether a running episode cannot go on there."""
    if not usable(robot, slot):
        return True
    return robot.failed_in == slot.name and not slot.health.is_healthy


def put_first(robot: Robot, slot: Slot, replica: Replica) -> None:
    """Make a replica the one that the robot asks first."""
    places = robot.places[slot.name]
    if places[0] == replica.name:
        return
    slot.replicas[places[0]].robots -= 1
    replica.robots += 1
    others = tuple(name for name in places if name != replica.name)
    robot.places = {**robot.places, slot.name: (replica.name, *others)}


class Places:
    """See the module."""

    def __init__(self, slots: dict[str, Slot], sticky: StickyTable, tally: Tally) -> None:
        self._slots, self._sticky, self._tally = slots, sticky, tally

    def place(self, flight: Flight, request_id: str, split_percent: int) -> Placement:
        """Decide on the slot of a request, and set it."""
        robot = flight.robot
        if robot.episode_id != flight.episode_id:
            robot.begin(flight.episode_id)
        placement = self._sticky.place(
            flight.episode_id,
            request_id,
            split_percent if len(self._slots) > 1 else None,
            partial(self._choose, robot),
        )
        slot = self._slots[placement.slot]
        runs = placement.cached or (robot.slot and not placement.degraded)
        if runs and must_leave(robot, slot):
            placement = self.move(flight, slot.name) or placement
        elif not runs:
            self._begin_at_the_least_busy(robot, slot)
        self._go(flight, placement)
        self._tally.requested(robot.ask.client_id, placement, flight.began_ns)
        return placement

    def _go(self, flight: Flight, placement: Placement) -> None:
        robot = flight.robot
        # a robot whose session is new may not have been told
        has_left = placement.moved and not (placement.cached and robot.slot)
        # another robot of the same episode may have had to leave
        has_followed = robot.slot not in ('', placement.slot) and not placement.degraded
        if has_left or has_followed:
            robot.flags |= Flag.POLICY_CHANGED
        flight.slot = robot.slot = placement.slot

    def move(self, flight: Flight, slot_name: str) -> Placement | None:
        """Take an episode to another slot; None when none can answer it, or it has no name."""
        robot, slot = flight.robot, self._slots[slot_name]
        others = [s for s in self._slots.values() if s is not slot and takes(robot, s)]
        if not others or not flight.episode_id:
            return None
        robot.failed_in = ''
        self._tally.moved(flight.episode_id, others[0].name)
        reason = f'slot {slot.name} cannot answer: {slot.text or "its last answer failed"}'
        placement = self._sticky.move(flight.episode_id, others[0].name, reason)
        self._go(flight, placement)
        return placement

    def _choose(self, robot: Robot, wanted: str) -> tuple[str, str]:
        """Return where a new episode goes, and why it is not `wanted`; no reason: it is."""
        if robot.slot and robot.episode_id:
            return robot.slot, '' if robot.slot == wanted else 'it runs there'
        slot = self._slots[wanted]
        if takes(robot, slot):
            return wanted, ''
        why = slot.text or f'it has no session of {robot.ask.client_id!r}'
        others = [s for s in self._slots.values() if s is not slot]
        for other in others:
            if takes(robot, other):
                return other.name, f'slot {wanted} takes no episodes: {why}'
        if not usable(robot, slot):
            able = [s for s in others if usable(robot, s)]
            able += [s for s in others if suspects(robot, s) and not suspects(robot, slot)]
            for other in able:
                return other.name, f'slot {wanted} cannot answer: {why}'
        return wanted, f'no slot is healthy; slot {wanted}: {why}'

    def _begin_at_the_least_busy(self, robot: Robot, slot: Slot) -> None:
        """A new episode needs nothing of the old: any replica with the session will do."""
        ready = usable(robot, slot)
        if len(ready) > 1:
            # moving the robot takes its own share of the load along
            own = 1 / max(1, ready[0].seen.max_sessions)
            best = min(ready, key=lambda r: r.pressure - (own + HABIT) * (r is ready[0]))
            put_first(robot, slot, best)
