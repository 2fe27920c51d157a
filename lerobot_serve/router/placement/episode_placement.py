# SPDX-License-Identifier: Apache-2.0
"""
Place episodes in slots, and move an episode that must leave its slot.

A new episode goes to the slot of the split if that is eligible (eligibility.py). A running episode
leaves its slot only if the slot cannot reply, or by a drain or a verdict; its next chunk carries
POLICY_CHANGED. PredictChunk goals, which have no session, follow the same rules; their results do
not affect health and counters of a slot.

No ROS; called under RoutingTable.lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.placement import split
from lerobot_serve.router.placement.eligibility import (
    check_eligibility,
    choose_slot,
    Eligibility,
    EligibilityResult,
    Reachability,
    SlotConditions,
    SlotUse,
)
from lerobot_serve.router.placement.placement_table import Placement, PlacementTable, request_id
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import SlotStats
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.trace.format.records import RecordIds

# a client keeps its replica among equally loaded ones
SWITCH_COST = 1e-3


class NoSlotAvailable(Exception):
    """
    None of the slots is eligible; the text has the reason of each. `status` is NO_SESSION where
    none can be reached: the client should try another server.
    """

    def __init__(self, slots: Iterable[Slot], text: str) -> None:
        super().__init__(f'no eligible slot ({text}); repair a slot, then retry')
        is_unreachable = all(slot.reach is Reachability.UNREACHABLE for slot in slots)
        self.status = Status.NO_SESSION if is_unreachable else Status.NO_SLOT


# the state of a slot for one session; without a session, all replicas of the slot count


def ready_replicas(session: ClientSession | None, slot: Slot) -> list[Replica]:
    """Return the ready replicas that hold the session, the preferred one first."""
    if session is None:
        return [replica for replica in slot if replica.is_ready]
    places = session.places.get(slot.name, ())
    return [slot.replicas[name] for name in places if slot.replicas[name].is_ready]


def unhealthy_replicas(session: ClientSession, slot: Slot) -> list[Replica]:
    """Return the unhealthy replicas that hold the session; used when none is ready."""
    places = session.places.get(slot.name, ())
    found = [slot.replicas[name] for name in places]
    return [replica for replica in found if replica.is_reachable and not replica.is_ready]


def session_reachability(session: ClientSession, slot: Slot) -> Reachability:
    """Return the reachability of a slot for a session."""
    if ready_replicas(session, slot):
        return Reachability.HEALTHY if slot.health.is_healthy else Reachability.UNHEALTHY
    return (
        Reachability.UNHEALTHY if unhealthy_replicas(session, slot) else Reachability.UNREACHABLE
    )


def session_conditions(session: ClientSession | None, slot: Slot, now_ns: int) -> SlotConditions:
    """Return the conditions of a slot for a session."""
    return slot.conditions(now_ns, session_reachability(session, slot) if session else None)


def session_eligibility(
    use: SlotUse, session: ClientSession | None, slot: Slot, now_ns: int
) -> EligibilityResult:
    """Return the eligibility of a slot for a session, and its reason."""
    return check_eligibility(use, session_conditions(session, slot, now_ns))


def must_leave(session: ClientSession | None, slot: Slot, now_ns: int) -> bool:
    """Return whether a running episode must leave the slot if another one is eligible."""
    grade = session_eligibility(SlotUse.STAY, session, slot, now_ns).grade
    if grade is not Eligibility.LAST_RESORT:
        return grade is Eligibility.NO
    has_failed = session is not None and session.failed_slot == slot.name
    return has_failed or not ready_replicas(session, slot)


def prefer_replica(session: ClientSession, slot: Slot, replica: Replica) -> None:
    """Make a replica the preferred one of a session."""
    places = session.places[slot.name]
    if places[0] == replica.name:
        return
    slot.replicas[places[0]].preferring_sessions -= 1
    replica.preferring_sessions += 1
    others = tuple(name for name in places if name != replica.name)
    session.places = {**session.places, slot.name: (replica.name, *others)}


class EpisodePlacement:
    """See the module."""

    def __init__(
        self, slots: dict[str, Slot], placements: PlacementTable, stats: SlotStats
    ) -> None:
        self._slots, self._placements, self._stats = slots, placements, stats

    # requests of sessions

    def place(self, request: InFlightRequest) -> Placement:
        """
        Set the slot of a request and return the placement. Raises NoSlotAvailable; then a new
        episode is not stored, and a running one keeps its slot.
        """
        with self._placements.stored_together():
            return self._place(request)

    def _place(self, request: InFlightRequest) -> Placement:
        session, now_ns = request.session, request.started_ns
        if session.episode_id != request.episode_id:
            session.begin(request.episode_id)
        placement = self._find_or_place(session, request.ids, now_ns)
        slot = self._slots[placement.slot]
        if self._is_running(session, placement):
            placement = self._leave_if_needed(session, request.episode_id, placement, now_ns)
        else:
            self._prefer_least_loaded(session, slot)
        self._assign(request, placement, now_ns)
        self._stats.record_request(session.request.client_id, placement, now_ns)
        return placement

    def move(self, request: InFlightRequest, slot_name: str, now_ns: int) -> Placement | None:
        """
        Move the episode of a request away from a slot; return None without an eligible slot or an
        episode_id.
        """
        slot = self._slots[slot_name]
        placement = self._move(request.session, request.episode_id, slot, now_ns)
        if placement:
            self._assign(request, placement, now_ns)
        return placement

    @staticmethod
    def _assign(request: InFlightRequest, placement: Placement, now_ns: int) -> None:
        session = request.session
        # the client of a new session may not know of an earlier move
        has_left = placement.moved and not (placement.sticky and session.slot)
        # another client of the same episode may have moved it
        has_followed = (
            session.slot not in ('', placement.slot) and not placement.missing_episode_id
        )
        if has_left or has_followed:
            session.flags |= Flag.POLICY_CHANGED
        request.slot = session.slot = placement.slot
        request.slot_since_ns = now_ns

    @staticmethod
    def _prefer_least_loaded(session: ClientSession, slot: Slot) -> None:
        """Prefer the least loaded replica; a new episode has no state at a replica yet."""
        ready = ready_replicas(session, slot)
        if len(ready) > 1:
            # the load of the session itself moves with it
            own = 1 / ready[0].max_sessions
            best = min(
                ready, key=lambda r: r.placement_load - (own + SWITCH_COST) * (r is ready[0])
            )
            prefer_replica(session, slot, best)

    # goals, which have no session

    def place_goal(self, ids: RecordIds, now_ns: int) -> tuple[Placement, Replica]:
        """Choose slot and replica of a goal. Raises NoSlotAvailable without storing anything."""
        placement = self._find_or_place(None, ids, now_ns)
        if ids.episode_id and not placement.sticky:
            self._stats.record_goal(ids.episode_id)
        if self._is_running(None, placement):
            placement = self._leave_if_needed(None, ids.episode_id, placement, now_ns)
        slot = self._slots[placement.slot]
        replica = slot.choose()
        if replica is None:
            raise NoSlotAvailable(self._slots.values(), f'slot {slot.name}: {slot.text}')
        return placement, replica

    def goal_refusal(self, slot_name: str, policy: str, now_ns: int) -> str:
        """Return why a reply of a policy to a goal is withheld; empty when it is relayed."""
        slot = self._slots.get(slot_name)
        if slot is None:
            return f'there is no slot {slot_name!r} any more'
        if policy != slot.policy:
            return f'the reply is of {policy}, and slot {slot.name} is {slot.policy}'
        stay = check_eligibility(SlotUse.STAY, slot.conditions(now_ns, Reachability.HEALTHY))
        return f'slot {slot.name}: {stay.reason}' if stay.grade is Eligibility.NO else ''

    # both

    def _find_or_place(
        self, session: ClientSession | None, ids: RecordIds, now_ns: int
    ) -> Placement:
        kept = self._placements.keep(ids.episode_id)
        if kept:
            return kept
        key = ids.episode_id or request_id(ids)
        wanted = split.slot(split.bucket(key), self._placements.split_percent)
        chosen, reason = self._choose(session, wanted, now_ns)
        return self._placements.add(ids.episode_id, key, chosen, reason)

    @staticmethod
    def _is_running(session: ClientSession | None, placement: Placement) -> bool:
        """Return whether the episode ran in its slot before this request."""
        has_run = session is not None and session.slot != '' and not placement.missing_episode_id
        return placement.sticky or has_run

    def _leave_if_needed(
        self, session: ClientSession | None, episode_id: str, placement: Placement, now_ns: int
    ) -> Placement:
        """Return the placement, moved if the episode must leave. Raises NoSlotAvailable."""
        slot = self._slots[placement.slot]
        if not must_leave(session, slot, now_ns):
            return placement
        moved = self._move(session, episode_id, slot, now_ns)
        if moved is None:
            self._check_may_stay(session, slot, now_ns)
        return moved or placement

    def _check_may_stay(self, session: ClientSession | None, slot: Slot, now_ns: int) -> None:
        """Raise NoSlotAvailable for an episode that can neither stay nor leave."""
        stay = session_eligibility(SlotUse.STAY, session, slot, now_ns)
        if stay.grade is Eligibility.NO:
            # the text has the reasons of all slots
            others = [each for each in self._slots.values() if each is not slot]
            reasons = {
                each.name: session_eligibility(SlotUse.MOVE_IN, session, each, now_ns).reason
                for each in others
            }
            texts = [f'slot {slot.name}: {stay.reason}']
            texts += [f'slot {name}: {reason}' for name, reason in reasons.items() if reason]
            raise NoSlotAvailable(self._slots.values(), '; '.join(texts))

    def _move(
        self, session: ClientSession | None, episode_id: str, slot: Slot, now_ns: int
    ) -> Placement | None:
        """Move an episode to an eligible slot; return None without one or without episode_id."""
        others = [each for each in self._slots.values() if each is not slot]
        eligible = [
            each
            for each in others
            if session_eligibility(SlotUse.MOVE_IN, session, each, now_ns).grade is Eligibility.YES
        ]
        if not eligible or not episode_id:
            return None
        stay = session_eligibility(SlotUse.STAY, session, slot, now_ns)
        if session:
            session.failed_slot = ''
        reason = f'slot {slot.name} cannot reply: {stay.reason or "its last request failed"}'
        with self._placements.stored_together():
            self._stats.record_move(episode_id, slot.name)
            return self._placements.move(episode_id, eligible[0].name, reason)

    def _choose(self, session: ClientSession | None, wanted: str, now_ns: int) -> tuple[str, str]:
        """
        Return the slot of a new episode and why it is not `wanted`. Raises NoSlotAvailable.
        """
        if session and session.slot and session.episode_id:
            is_wanted = session.slot == wanted
            return session.slot, '' if is_wanted else 'the session already runs an episode there'
        conditions = {
            name: session_conditions(session, slot, now_ns) for name, slot in self._slots.items()
        }
        choice = choose_slot(wanted, conditions)
        if not choice.slot:
            raise NoSlotAvailable(self._slots.values(), choice.reason)
        return choice
