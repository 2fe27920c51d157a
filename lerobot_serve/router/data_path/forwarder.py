"""
Whom a request goes to: its replica, a second one when that is late, another when it fails, and
those that want to be tried again. Plain; the dispatcher's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isnan

from lerobot_serve.router.data_path.in_flight import (
    InFlightRequest,
    InFlightRequests,
    PendingReply,
    RequestPurpose,
)
from lerobot_serve.router.data_path.rules import DispatchRules, HEDGE_FLOOR_NS, HedgeBudget
from lerobot_serve.router.data_path.transport import Transport
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.placement.eligibility import Eligibility, SlotUse
from lerobot_serve.router.placement.episode_placement import (
    EpisodePlacement,
    must_leave,
    NoSlotAvailable,
    prefer_replica,
    ready_replicas,
    session_eligibility,
    unhealthy_replicas,
)
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import SlotStats
from lerobot_serve.wire.schema import Flag, Status

# failures that need not be those of a slot's other replicas
REPLICA_FAILURES = ('timeout', 'wrong_policy', 'policy_error')
# the slot's running episodes leave; no failure of it
SLOT_LEFT = 'slot_left'
# what is done once the lock is free, in order
DeferredCalls = list[Callable[[], None]]


class RequestForwarder:
    """`rules` may be replaced at any time."""

    def __init__(
        self,
        slots: dict[str, Slot],
        places: EpisodePlacement,
        flights: InFlightRequests,
        outside: Transport,
        tally: SlotStats,
        drops: DropCounters,
        rules: DispatchRules,
    ) -> None:
        self.slots, self.flights = slots, flights
        self.rules = rules
        self._episode_placement, self._outside = places, outside
        self._tally, self._drops = tally, drops
        # a slot that is slow must not use up what the other one needs
        self._budgets = {name: HedgeBudget() for name in slots}
        self.hedges = 0

    @property
    def rules(self) -> DispatchRules:
        return self._rules

    @rules.setter
    def rules(self, rules: DispatchRules) -> None:
        self._rules = rules
        for slot in self.slots.values():
            slot.has_share = rules.share_percent(slot.name) > 0
            slot.is_spare = slot.name in rules.spare

    def send(self, flight: InFlightRequest, acts: DeferredCalls, now_ns: int) -> bool:
        """Ask the first replica of the slot that was not asked yet; False when there is none."""
        slot = self.slots[flight.slot]
        untried = _untried(flight, ready_replicas(flight.robot, slot))
        if not untried:
            return False
        if not flight.tried:
            self._budgets[slot.name].earn(self.rules.hedge_percent)
        asked = self._send_to(flight, slot, untried[0], acts, now_ns)
        if len(untried) > 1:
            self._schedule_hedge(asked, untried[0], now_ns)
        return True

    def send_to_unhealthy(self, flight: InFlightRequest, acts: DeferredCalls, now_ns: int) -> bool:
        """Ask one that failed lately, where nobody else is left; False when there is none."""
        slot = self.slots[flight.slot]
        untried = _untried(flight, unhealthy_replicas(flight.robot, slot))
        if untried:
            self._send_to(flight, slot, untried[0], acts, now_ns)
        return bool(untried)

    def _send_to(
        self,
        flight: InFlightRequest,
        slot: Slot,
        replica: Replica,
        acts: DeferredCalls,
        now_ns: int,
    ) -> PendingReply:
        robot = flight.robot
        if robot.server not in ('', replica.name) and not replica.is_stateless:
            # what the policy remembered stays behind
            robot.flags |= Flag.STATE_LOST
        robot.server = replica.name
        prefer_replica(robot, slot, replica)
        return self._ask(flight, replica, RequestPurpose.LIVE, acts, now_ns)

    def _ask(
        self,
        flight: InFlightRequest,
        replica: Replica,
        purpose: RequestPurpose,
        acts: DeferredCalls,
        now_ns: int,
    ) -> PendingReply:
        asked = self.flights.ask(flight, replica.name, purpose, now_ns, self.rules.timeout_ns)
        flight.robot.last_used_ns[replica.name] = now_ns
        replica.counts['requests'] += 1
        replica.asked(now_ns)
        acts.append(partial(self._outside.send, replica.name, flight.raw))
        return asked

    def _schedule_hedge(self, asked: PendingReply, replica: Replica, now_ns: int) -> None:
        # its own where that is known: the slot's holds the waits for second tries, too
        p95_ms = replica.latency.percentile_ms(95)
        if isnan(p95_ms):
            p95_ms = self._tally.slot(replica.slot).latency.percentile_ms(95)
        if self.rules.hedge_factor and replica.is_stateless and not isnan(p95_ms):
            wait_ns = max(int(self.rules.hedge_factor * p95_ms * 1e6), HEDGE_FLOOR_NS)
            self.flights.schedule_hedge(asked, now_ns + wait_ns)

    def hedge(self, flight: InFlightRequest, acts: DeferredCalls, now_ns: int) -> None:
        """Ask one more replica, as often as the budget allows."""
        slot = self.slots[flight.slot]
        is_allowed = (
            session_eligibility(SlotUse.HEDGE, flight.robot, slot, now_ns) is not Eligibility.NO
        )
        untried = _untried(flight, ready_replicas(flight.robot, slot)) if is_allowed else []
        # a share of 0 is none at all, whatever is left of the budget
        if untried and self.rules.hedge_percent and self._budgets[flight.slot].spend():
            self.hedges += 1
            untried[0].counts['hedges'] += 1
            self._ask(flight, untried[0], RequestPurpose.HEDGE, acts, now_ns)

    def send_probes(self, flight: InFlightRequest, acts: DeferredCalls, now_ns: int) -> None:
        """Send a copy to who wants to be tried again."""
        for slot in self.slots.values():
            health = (slot.health, *(replica.health for replica in slot))
            if not any(each.is_probe_due(now_ns) for each in health):
                continue
            names = flight.robot.places.get(slot.name, ())
            replicas = _untried(flight, [slot.replicas[name] for name in names])
            for replica in replicas:
                # one that is well is tried for its slot, any other for itself
                tried = slot.health if replica.is_ready else replica.health
                if replica.is_reachable and tried.is_probe_due(now_ns):
                    tried.probe_sent(now_ns, self.rules.timeout_ns)
                    replica.counts['probes'] += 1
                    self._ask(flight, replica, RequestPurpose.TRIAL, acts, now_ns)

    def fail_over(
        self,
        flight: InFlightRequest,
        reason: str,
        acts: DeferredCalls,
        now_ns: int,
        *,
        same_slot: bool = True,
    ) -> bool:
        """
        Ask another replica of the slot or, where the episode cannot stay, of the other slot;
        False when nobody is left. Without `same_slot` the slot's answer is known to be the same.
        """
        robot, slot = flight.robot, self.slots[flight.slot]
        same_slot &= (
            session_eligibility(SlotUse.FAIL_OVER, robot, slot, now_ns) is not Eligibility.NO
        )
        if same_slot and self.send(flight, acts, now_ns):
            self._drops.add('failed_over')
            return True
        if reason != SLOT_LEFT:
            self._record_failure(flight, slot, reason, now_ns)
        may_leave = reason == 'timeout' or must_leave(robot, slot, now_ns)
        if not (may_leave and self._can_move(flight, now_ns)):
            return False
        placement = self._episode_placement.move(flight, slot.name, now_ns)
        flight.is_new = True
        acts.append(partial(self._outside.decided, robot, flight, placement))
        return self.send(flight, acts, now_ns)

    def _record_failure(
        self, flight: InFlightRequest, slot: Slot, reason: str, now_ns: int
    ) -> None:
        """Nobody in the slot answers this request."""
        robot = flight.robot
        is_first, robot.failed_slot = robot.failed_slot != slot.name, slot.name
        self._tally.failed(slot.name, reason)
        # the session is opened again; only where that does not help there is something wrong
        if reason == 'no_session' and is_first:
            return
        # another replica may be well, which only has no session of this robot
        others = any(each.is_ready and each.name not in flight.tried for each in slot)
        if reason in REPLICA_FAILURES and others:
            self.blame(flight, slot, now_ns)
        else:
            slot.health.failed(reason, now_ns)

    def blame(self, flight: InFlightRequest, slot: Slot, now_ns: int) -> None:
        """
        Hold it against the replicas at which the policy failed that another one is, or may be,
        well. Where it fails at all of them, it is the request or the policy.
        """
        for name in flight.failed_servers:
            if name in slot.replicas:
                slot.replicas[name].health.failed('policy_error', now_ns)

    def has_others(self, flight: InFlightRequest, now_ns: int) -> bool:
        """Return whether another replica or slot is left to be asked."""
        slot = self.slots[flight.slot]
        here = (
            session_eligibility(SlotUse.FAIL_OVER, flight.robot, slot, now_ns)
            is not Eligibility.NO
        )
        if here and _untried(flight, ready_replicas(flight.robot, slot)):
            return True
        return self._can_move(flight, now_ns)

    def _can_move(self, flight: InFlightRequest, now_ns: int) -> bool:
        """Return whether the episode may leave for a slot that was not asked yet."""
        robot = flight.robot
        others = [slot for slot in self.slots.values() if slot.name != flight.slot]
        return bool(flight.episode_id) and any(
            session_eligibility(SlotUse.MOVE_IN, robot, slot, now_ns) is Eligibility.YES
            and _untried(flight, ready_replicas(robot, slot))
            for slot in others
        )

    def give_up(self, flight: InFlightRequest, acts: DeferredCalls) -> None:
        """Answer the robot at once that no replica can: with a new session one may."""
        slot = self.slots[flight.slot]
        text = f'slot {slot.name} cannot answer: {slot.text or "no replica has this session"}'
        self._drops.add('unanswered')
        acts.append(partial(self._outside.fail, flight, Status.NO_SESSION, text))
        flight.end()

    def refuse(
        self, flight: InFlightRequest, nowhere: NoSlotAvailable, acts: DeferredCalls
    ) -> None:
        """Answer the robot at once that no slot may: its own ladder takes over."""
        status = Status.NO_SESSION if nowhere.is_gone else Status.NO_SLOT
        self._drops.add('unanswered' if nowhere.is_gone else 'no_slot')
        acts.append(partial(self._outside.fail, flight, status, str(nowhere)))
        flight.end()


def _untried(flight: InFlightRequest, replicas: list[Replica]) -> list[Replica]:
    return [replica for replica in replicas if replica.name not in flight.tried]


def run_deferred(acts: DeferredCalls) -> None:
    for act in acts:
        act()
