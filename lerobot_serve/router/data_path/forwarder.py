# SPDX-License-Identifier: Apache-2.0
"""
Choose the replicas of a request: the preferred one, a hedge, a failover, and probes.

No ROS; called under the dispatcher's lock.
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

# failures of one replica, which its slot's other replicas need not share
REPLICA_FAILURES = ('timeout', 'wrong_policy', 'policy_error')
# the slot's running episodes leave; not a failure
SLOT_LEFT = 'slot_left'
# calls to make in this order after the lock is released
DeferredCalls = list[Callable[[], None]]


class RequestForwarder:
    """`rules` may be replaced at any time."""

    def __init__(
        self,
        slots: dict[str, Slot],
        places: EpisodePlacement,
        in_flight: InFlightRequests,
        transport: Transport,
        stats: SlotStats,
        drops: DropCounters,
        rules: DispatchRules,
    ) -> None:
        self.slots, self.in_flight = slots, in_flight
        self.rules = rules
        self._episode_placement, self._transport = places, transport
        self._stats, self._drops = stats, drops
        # one budget a slot: a slow slot must not use up that of the other
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
            slot.takes_failover = slot.name in rules.failover_slots

    def send(self, flight: InFlightRequest, deferred: DeferredCalls, now_ns: int) -> bool:
        """Send to the first untried replica of the slot; False when there is none."""
        slot = self.slots[flight.slot]
        untried = _untried(flight, ready_replicas(flight.robot, slot))
        if not untried:
            return False
        if not flight.tried:
            self._budgets[slot.name].earn(self.rules.hedge_budget_percent)
        asked = self._send_to(flight, slot, untried[0], deferred, now_ns)
        if len(untried) > 1:
            self._schedule_hedge(asked, untried[0], now_ns)
        return True

    def send_to_unhealthy(
        self, flight: InFlightRequest, deferred: DeferredCalls, now_ns: int
    ) -> bool:
        """Send to an unhealthy replica when no other is left; False when there is none."""
        slot = self.slots[flight.slot]
        untried = _untried(flight, unhealthy_replicas(flight.robot, slot))
        if untried:
            self._send_to(flight, slot, untried[0], deferred, now_ns)
        return bool(untried)

    def _send_to(
        self,
        flight: InFlightRequest,
        slot: Slot,
        replica: Replica,
        deferred: DeferredCalls,
        now_ns: int,
    ) -> PendingReply:
        robot = flight.robot
        if robot.server not in ('', replica.name) and not replica.is_stateless:
            # the policy's state stays at the previous replica
            robot.flags |= Flag.STATE_LOST
        robot.server = replica.name
        prefer_replica(robot, slot, replica)
        return self._send_copy(flight, replica, RequestPurpose.LIVE, deferred, now_ns)

    def _send_copy(
        self,
        flight: InFlightRequest,
        replica: Replica,
        purpose: RequestPurpose,
        deferred: DeferredCalls,
        now_ns: int,
    ) -> PendingReply:
        asked = self.in_flight.add_pending(
            flight, replica.name, purpose, now_ns, self.rules.timeout_ns
        )
        flight.robot.last_used_ns[replica.name] = now_ns
        replica.counts['requests'] += 1
        replica.request_sent(now_ns)
        deferred.append(partial(self._transport.send, replica.name, flight.raw))
        return asked

    def _schedule_hedge(self, asked: PendingReply, replica: Replica, now_ns: int) -> None:
        # the replica's own p95 if known: that of the slot includes hedge delays
        p95_ms = replica.latency.percentile_ms(95)
        if isnan(p95_ms):
            p95_ms = self._stats.slot(replica.slot).latency.percentile_ms(95)
        if self.rules.hedge_factor and replica.is_stateless and not isnan(p95_ms):
            wait_ns = max(int(self.rules.hedge_factor * p95_ms * 1e6), HEDGE_FLOOR_NS)
            self.in_flight.schedule_hedge(asked, now_ns + wait_ns)

    def hedge(self, flight: InFlightRequest, deferred: DeferredCalls, now_ns: int) -> None:
        """Send a second copy to another replica, if the budget allows."""
        slot = self.slots[flight.slot]
        is_allowed = (
            session_eligibility(SlotUse.HEDGE, flight.robot, slot, now_ns) is not Eligibility.NO
        )
        untried = _untried(flight, ready_replicas(flight.robot, slot)) if is_allowed else []
        # 0 % disables hedging, whatever is left of the budget
        if untried and self.rules.hedge_budget_percent and self._budgets[flight.slot].spend():
            self.hedges += 1
            untried[0].counts['hedges'] += 1
            self._send_copy(flight, untried[0], RequestPurpose.HEDGE, deferred, now_ns)

    def send_probes(self, flight: InFlightRequest, deferred: DeferredCalls, now_ns: int) -> None:
        """Send copies to replicas whose probe is due."""
        for slot in self.slots.values():
            health = (slot.health, *(replica.health for replica in slot))
            if not any(each.is_probe_due(now_ns) for each in health):
                continue
            names = flight.robot.places.get(slot.name, ())
            replicas = _untried(flight, [slot.replicas[name] for name in names])
            for replica in replicas:
                # a healthy replica is probed for its slot, any other for itself
                tried = slot.health if replica.is_ready else replica.health
                if replica.is_reachable and tried.is_probe_due(now_ns):
                    tried.probe_sent(now_ns, self.rules.timeout_ns)
                    replica.counts['probes'] += 1
                    self._send_copy(flight, replica, RequestPurpose.TRIAL, deferred, now_ns)

    def fail_over(
        self,
        flight: InFlightRequest,
        reason: str,
        deferred: DeferredCalls,
        now_ns: int,
        *,
        same_slot: bool = True,
    ) -> bool:
        """
        Send to another replica of the slot or, where the episode cannot stay, of the other slot;
        False when none is left. Without `same_slot` the slot would fail again.
        """
        robot, slot = flight.robot, self.slots[flight.slot]
        same_slot &= (
            session_eligibility(SlotUse.FAIL_OVER, robot, slot, now_ns) is not Eligibility.NO
        )
        if same_slot and self.send(flight, deferred, now_ns):
            self._drops.add('failed_over')
            return True
        if reason != SLOT_LEFT:
            self._record_failure(flight, slot, reason, now_ns)
        may_leave = reason == 'timeout' or must_leave(robot, slot, now_ns)
        if not (may_leave and self._can_move(flight, now_ns)):
            return False
        placement = self._episode_placement.move(flight, slot.name, now_ns)
        flight.is_new = True
        deferred.append(partial(self._transport.on_placed, robot, flight, placement))
        return self.send(flight, deferred, now_ns)

    def _record_failure(
        self, flight: InFlightRequest, slot: Slot, reason: str, now_ns: int
    ) -> None:
        """Record that no replica of the slot replied with actions."""
        robot = flight.robot
        is_first, robot.failed_slot = robot.failed_slot != slot.name, slot.name
        self._stats.record_failure(slot.name, reason)
        # the session is reopened first; only a second time counts as a failure
        if reason == 'no_session' and is_first:
            return
        # another replica may be healthy but lack this session
        others = any(each.is_ready and each.name not in flight.tried for each in slot)
        if reason in REPLICA_FAILURES and others:
            self.blame(flight, slot, now_ns)
        else:
            slot.health.record_failure(reason, now_ns)

    def blame(self, flight: InFlightRequest, slot: Slot, now_ns: int) -> None:
        """
        Record policy errors of the replicas that failed this request while another replica may
        serve it. Where all of them fail, the request or the policy is at fault.
        """
        for name in flight.failed_servers:
            if name in slot.replicas:
                slot.replicas[name].health.record_failure('policy_error', now_ns)

    def has_others(self, flight: InFlightRequest, now_ns: int) -> bool:
        """Return whether an untried replica or slot is left."""
        slot = self.slots[flight.slot]
        here = (
            session_eligibility(SlotUse.FAIL_OVER, flight.robot, slot, now_ns)
            is not Eligibility.NO
        )
        if here and _untried(flight, ready_replicas(flight.robot, slot)):
            return True
        return self._can_move(flight, now_ns)

    def _can_move(self, flight: InFlightRequest, now_ns: int) -> bool:
        """Return whether the episode may move to an untried slot."""
        robot = flight.robot
        others = [slot for slot in self.slots.values() if slot.name != flight.slot]
        return bool(flight.episode_id) and any(
            session_eligibility(SlotUse.MOVE_IN, robot, slot, now_ns) is Eligibility.YES
            and _untried(flight, ready_replicas(robot, slot))
            for slot in others
        )

    def give_up(self, flight: InFlightRequest, deferred: DeferredCalls) -> None:
        """Reply NO_SESSION at once: the client may open a new session."""
        slot = self.slots[flight.slot]
        text = f'slot {slot.name} cannot reply: {slot.text or "no replica has this session"}'
        self._drops.add('unanswered')
        deferred.append(partial(self._transport.fail, flight, Status.NO_SESSION, text))
        flight.end()

    def refuse(
        self, flight: InFlightRequest, nowhere: NoSlotAvailable, deferred: DeferredCalls
    ) -> None:
        """Reply NO_SLOT at once: the fallback ladder of the robot takes over."""
        status = Status.NO_SESSION if nowhere.is_gone else Status.NO_SLOT
        self._drops.add('unanswered' if nowhere.is_gone else 'no_slot')
        deferred.append(partial(self._transport.fail, flight, status, str(nowhere)))
        flight.end()


def _untried(flight: InFlightRequest, replicas: list[Replica]) -> list[Replica]:
    return [replica for replica in replicas if replica.name not in flight.tried]


def run_deferred(deferred: DeferredCalls) -> None:
    for act in deferred:
        act()
