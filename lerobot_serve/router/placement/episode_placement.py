# SPDX-License-Identifier: Apache-2.0
"""
Place an episode in a slot, and move it when it must leave.

A new episode goes to the slot of the split if that is eligible. A running one stays to its end; it
leaves a slot only when that cannot reply, or by a drain or a verdict, and its next chunk carries
POLICY_CHANGED. eligibility.py decides. No ROS; called under the dispatcher's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.placement.eligibility import (
    check_eligibility,
    choose_slot,
    Eligibility,
    Reachability,
    SlotUse,
)
from lerobot_serve.router.placement.placement_table import Placement, PlacementTable
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import SlotStats
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.wire.schema import Flag

# of equally loaded replicas a client keeps the one it had
SWITCH_COST = 1e-3


class NoSlotAvailable(Exception):
    """
    No slot is eligible; the text gives the reason of each. `is_gone`: none can be reached, so that
    the client should try another server.
    """

    def __init__(self, text: str, *, is_gone: bool) -> None:
        super().__init__(f'no eligible slot ({text}); repair a slot, then retry')
        self.is_gone = is_gone


def ready_replicas(robot: ClientSession, slot: Slot) -> list[Replica]:
    """Return the ready replicas that hold this session, preferred first."""
    places = robot.places.get(slot.name, ())
    return [slot.replicas[name] for name in places if slot.replicas[name].is_ready]


def unhealthy_replicas(robot: ClientSession, slot: Slot) -> list[Replica]:
    """Return the unhealthy replicas that hold this session; used when none is ready."""
    places = robot.places.get(slot.name, ())
    found = [slot.replicas[name] for name in places]
    return [replica for replica in found if replica.is_reachable and not replica.is_ready]


def session_reachability(robot: ClientSession, slot: Slot) -> Reachability:
    """Return the reachability of a slot for a session."""
    if ready_replicas(robot, slot):
        return Reachability.HEALTHY if slot.health.is_healthy else Reachability.SUSPECT
    return Reachability.SUSPECT if unhealthy_replicas(robot, slot) else Reachability.ABSENT


def session_eligibility(
    path: SlotUse, robot: ClientSession, slot: Slot, now_ns: int
) -> Eligibility:
    """Return the eligibility of a slot for a session."""
    return check_eligibility(
        path, slot.conditions(now_ns, session_reachability(robot, slot))
    ).grade


def must_leave(robot: ClientSession, slot: Slot, now_ns: int) -> bool:
    """Return whether a running episode must leave the slot if it can."""
    grade = session_eligibility(SlotUse.STAY, robot, slot, now_ns)
    if grade is not Eligibility.IN_NEED:
        return grade is Eligibility.NO
    return robot.failed_slot == slot.name or not ready_replicas(robot, slot)


def prefer_replica(robot: ClientSession, slot: Slot, replica: Replica) -> None:
    """Make a replica the preferred one of a session."""
    places = robot.places[slot.name]
    if places[0] == replica.name:
        return
    slot.replicas[places[0]].robots -= 1
    replica.robots += 1
    others = tuple(name for name in places if name != replica.name)
    robot.places = {**robot.places, slot.name: (replica.name, *others)}


def no_slot_available(slots: Iterable[Slot], text: str) -> NoSlotAvailable:
    return NoSlotAvailable(text, is_gone=all(slot.reach is Reachability.ABSENT for slot in slots))


class EpisodePlacement:
    """See the module."""

    def __init__(self, slots: dict[str, Slot], sticky: PlacementTable, stats: SlotStats) -> None:
        self._slots, self._sticky, self._stats = slots, sticky, stats

    def place(self, flight: InFlightRequest, request_id: str, split_percent: int) -> Placement:
        """
        Set the slot of a request. Raises NoSlotAvailable when none is eligible; a new episode is
        not stored then, and a running one keeps its slot.
        """
        robot, now_ns = flight.robot, flight.began_ns
        if robot.episode_id != flight.episode_id:
            robot.begin(flight.episode_id)
        placement = self._sticky.place(
            flight.episode_id,
            request_id,
            split_percent if len(self._slots) > 1 else None,
            partial(self._choose, robot, now_ns),
        )
        slot = self._slots[placement.slot]
        runs = placement.sticky or (robot.slot and not placement.missing_episode_id)
        if runs and must_leave(robot, slot, now_ns):
            placement = self.move(flight, slot.name, now_ns) or placement
            self._check_may_stay(robot, placement, now_ns)
        elif not runs:
            self._prefer_least_loaded(robot, slot)
        self._assign(flight, placement)
        self._stats.record_request(robot.ask.client_id, placement, flight.began_ns)
        return placement

    def _check_may_stay(self, robot: ClientSession, placement: Placement, now_ns: int) -> None:
        """Raise NoSlotAvailable for an episode that may neither stay nor leave."""
        slot = self._slots[placement.slot]
        stay = check_eligibility(
            SlotUse.STAY, slot.conditions(now_ns, session_reachability(robot, slot))
        )
        if stay.grade is Eligibility.NO:
            # the reasons of all slots: what has to change
            others = [s for s in self._slots.values() if s is not slot]
            answers = [
                (
                    s,
                    check_eligibility(
                        SlotUse.MOVE_IN, s.conditions(now_ns, session_reachability(robot, s))
                    ),
                )
                for s in others
            ]
            texts = [f'slot {slot.name}: {stay.reason}']
            texts += [f'slot {s.name}: {answer.reason}' for s, answer in answers if answer.reason]
            raise no_slot_available(self._slots.values(), '; '.join(texts))

    def _assign(self, flight: InFlightRequest, placement: Placement) -> None:
        robot = flight.robot
        # a new session may not have been notified
        has_left = placement.moved and not (placement.sticky and robot.slot)
        # another client of the same episode may have moved it
        has_followed = robot.slot not in ('', placement.slot) and not placement.missing_episode_id
        if has_left or has_followed:
            robot.flags |= Flag.POLICY_CHANGED
        flight.slot = robot.slot = placement.slot

    def move(self, flight: InFlightRequest, slot_name: str, now_ns: int) -> Placement | None:
        """Move an episode to another slot; None without an eligible slot or an episode_id."""
        robot, slot = flight.robot, self._slots[slot_name]
        others = [s for s in self._slots.values() if s is not slot]
        others = [
            s
            for s in others
            if session_eligibility(SlotUse.MOVE_IN, robot, s, now_ns) is Eligibility.YES
        ]
        if not others or not flight.episode_id:
            return None
        stay = check_eligibility(
            SlotUse.STAY, slot.conditions(now_ns, session_reachability(robot, slot))
        )
        robot.failed_slot = ''
        self._stats.record_move(flight.episode_id, others[0].name)
        reason = f'slot {slot.name} cannot reply: {stay.reason or "its last request failed"}'
        placement = self._sticky.move(flight.episode_id, others[0].name, reason)
        self._assign(flight, placement)
        return placement

    def _choose(self, robot: ClientSession, now_ns: int, wanted: str) -> tuple[str, str]:
        """
        Return the slot of a new episode and why it is not `wanted`. Raises NoSlotAvailable.
        """
        if robot.slot and robot.episode_id:
            return (
                robot.slot,
                '' if robot.slot == wanted else 'the session already runs an episode there',
            )
        conditions = {
            name: slot.conditions(now_ns, session_reachability(robot, slot))
            for name, slot in self._slots.items()
        }
        choice = choose_slot(wanted, conditions)
        if not choice.slot:
            raise no_slot_available(self._slots.values(), choice.reason)
        return choice

    def _prefer_least_loaded(self, robot: ClientSession, slot: Slot) -> None:
        """Prefer the least loaded replica for a new episode, which has no state yet."""
        ready = ready_replicas(robot, slot)
        if len(ready) > 1:
            # the session moves its own share of the load
            own = 1 / max(1, ready[0].report.max_sessions)
            best = min(
                ready, key=lambda r: r.placement_load - (own + SWITCH_COST) * (r is ready[0])
            )
            prefer_replica(robot, slot, best)
