# SPDX-License-Identifier: Apache-2.0
"""
Select the replicas of a request and send its copies: first copy, hedge, failover and probes.

No ROS; called under RoutingTable.lock.
"""

from __future__ import annotations

from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.quotas import QuotaRefusal
from lerobot_serve.router.data_path.dispatch_step import DispatchStep
from lerobot_serve.router.data_path.hedging import Hedging
from lerobot_serve.router.data_path.in_flight import InFlightRequest, PendingReply, RequestPurpose
from lerobot_serve.router.data_path.replica_transport import ReplicaTransport
from lerobot_serve.router.data_path.request_observer import RequestObserver
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.data_path.uncharged_requests import CHARGED_PURPOSES, SentRequest
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
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.sessions.client_sessions import ClientSession

# failures that other replicas of the slot may not share
REPLICA_FAILURES = ('timeout', 'wrong_policy', 'policy_error')
# running episodes leave the slot; not a failure
SLOT_LEFT = 'slot_left'


class RequestForwarder:
    """See the module. Sends and reports are deferred to the end of the step."""

    def __init__(
        self,
        table: RoutingTable,
        placement: EpisodePlacement,
        transport: ReplicaTransport,
        observer: RequestObserver,
        drops: DropCounters,
    ) -> None:
        self._table, self._episode_placement = table, placement
        self._transport, self._observer, self._drops = transport, observer, drops
        self.hedging = Hedging(table.stats, table.slots)

    def send(self, request: InFlightRequest, step: DispatchStep) -> bool:
        """Send to the first untried ready replica of the slot; return False without one."""
        slot, rules = self._table.slots[request.slot], self._table.rules
        untried = _untried(request, ready_replicas(request.session, slot))
        if not untried:
            return False
        if not request.tried_servers:
            self.hedging.earn(slot.name, rules)
        pending = self._send_to(request, slot, untried[0], step)
        delay_ns = self.hedging.delay_ns(untried[0], rules) if len(untried) > 1 else None
        if delay_ns is not None:
            self._table.in_flight.schedule_hedge(pending, step.now_ns + delay_ns)
        return True

    def send_to_unhealthy(self, request: InFlightRequest, step: DispatchStep) -> bool:
        """Send to the first untried unhealthy replica of the slot; return False without one."""
        slot = self._table.slots[request.slot]
        untried = _untried(request, unhealthy_replicas(request.session, slot))
        if untried:
            self._send_to(request, slot, untried[0], step)
        return bool(untried)

    def _send_to(
        self, request: InFlightRequest, slot: Slot, replica: Replica, step: DispatchStep
    ) -> PendingReply:
        session = request.session
        if session.server not in ('', replica.name) and self._keeps_state(session.server):
            # the policy's state stays at the previous replica
            session.flags |= Flag.STATE_LOST
        session.server = replica.name
        prefer_replica(session, slot, replica)
        return self._send_copy(request, replica, RequestPurpose.LIVE, step)

    def _keeps_state(self, server: str) -> bool:
        """Return whether a replica has a hidden state of its sessions, also one that is gone."""
        replica = self._table.replicas.get(server)
        return replica is None or not replica.is_stateless

    def _send_copy(
        self,
        request: InFlightRequest,
        replica: Replica,
        purpose: RequestPurpose,
        step: DispatchStep,
    ) -> PendingReply:
        pending = self._table.in_flight.add_pending(
            request,
            replica.name,
            purpose,
            now_ns=step.now_ns,
            timeout_ns=self._table.rules.timeout_ns,
        )
        session = request.session
        if purpose in CHARGED_PURPOSES:
            sent = SentRequest(replica.name, request.header.session_epoch, request.seq)
            self._table.uncharged.add(session.request.client_id, sent)
        session.last_used_ns[replica.name] = step.now_ns
        replica.counts['requests'] += 1
        replica.request_sent(step.now_ns)
        step.defer(self._transport.send, replica.name, request.raw)
        return pending

    def hedge(self, request: InFlightRequest, step: DispatchStep) -> None:
        """Send a second copy to another replica if slot and budget allow it."""
        slot = self._table.slots[request.slot]
        if not self._is_eligible(SlotUse.HEDGE, request.session, slot, step):
            return
        untried = _untried(request, ready_replicas(request.session, slot))
        if untried and self.hedging.spend(slot.name, self._table.rules):
            untried[0].counts['hedges'] += 1
            self._send_copy(request, untried[0], RequestPurpose.HEDGE, step)

    @staticmethod
    def _is_eligible(use: SlotUse, session: ClientSession, slot: Slot, step: DispatchStep) -> bool:
        """Return whether a slot may serve a session, also as a last resort."""
        return session_eligibility(use, session, slot, step.now_ns).grade is not Eligibility.NO

    def send_probes(self, request: InFlightRequest, step: DispatchStep) -> None:
        """Send copies of a request to replicas whose probe is due."""
        now_ns = step.now_ns
        for slot in self._table.slots.values():
            health = (slot.health, *(replica.health for replica in slot))
            if not any(each.is_probe_due(now_ns) for each in health):
                continue
            names = request.session.places.get(slot.name, ())
            replicas = _untried(request, [slot.replicas[name] for name in names])
            for replica in replicas:
                # the probe of a ready replica counts for its slot, otherwise for the replica
                probed = slot.health if replica.is_ready else replica.health
                if replica.is_reachable and probed.is_probe_due(now_ns):
                    probed.probe_sent(now_ns, self._table.rules.timeout_ns)
                    replica.counts['probes'] += 1
                    self._send_copy(request, replica, RequestPurpose.PROBE, step)

    def fail_over(
        self,
        request: InFlightRequest,
        reason: str,
        step: DispatchStep,
        *,
        same_slot: bool = True,
    ) -> bool:
        """
        Send to another replica of the slot or, if the episode may leave, of another slot; return
        False when none is left. Without `same_slot`, other replicas of the slot are not tried.
        """
        session, slot = request.session, self._table.slots[request.slot]
        same_slot &= self._is_eligible(SlotUse.FAIL_OVER, session, slot, step)
        if same_slot and self.send(request, step):
            self._drops.add('failed_over')
            return True
        if reason != SLOT_LEFT:
            self._record_failure(request, slot, reason, step.now_ns)
        is_over = reason in ('timeout', SLOT_LEFT)
        may_leave = is_over or must_leave(session, slot, step.now_ns)
        if not (may_leave and self._can_move(request, step)):
            return False
        placement = self._episode_placement.move(request, slot.name, step.now_ns)
        if placement is None:
            return False
        request.is_new = True
        self.report_placement(request, placement, step)
        return self.send(request, step)

    def report_placement(
        self, request: InFlightRequest, placement: Placement, step: DispatchStep
    ) -> None:
        """Report a placement at the end of the step, with the replica preferred by then."""
        step.defer(self._report_placement, request, placement)

    def _report_placement(self, request: InFlightRequest, placement: Placement) -> None:
        """Report a placement to the observer. Without the lock."""
        places = request.session.places.get(placement.slot, ())
        policy = self._table.slots[placement.slot].policy
        self._observer.on_placed(request, placement, places[0] if places else '', policy)

    def _record_failure(
        self, request: InFlightRequest, slot: Slot, reason: str, now_ns: int
    ) -> None:
        """Record that no replica of the slot has replied with actions."""
        session = request.session
        is_first, session.failed_slot = session.failed_slot != slot.name, slot.name
        self._table.stats.record_failure(slot.name, reason)
        # the session is reopened first: only a second loss counts as a failure
        if reason == 'no_session' and is_first:
            return
        # another replica may be healthy without holding this session
        others = any(each.is_ready and each.name not in request.tried_servers for each in slot)
        if reason in REPLICA_FAILURES and others:
            self.record_policy_failures(request, slot, now_ns)
        else:
            slot.health.record_failure(reason, now_ns)

    def record_policy_failures(self, request: InFlightRequest, slot: Slot, now_ns: int) -> None:
        """
        Record policy errors of the replicas that failed this request, which another replica serves
        or may serve. If all replicas fail, the request or the policy is at fault.
        """
        for name in request.failed_servers:
            if name in slot.replicas:
                slot.replicas[name].health.record_failure('policy_error', now_ns)

    def has_alternative(self, request: InFlightRequest, step: DispatchStep) -> bool:
        """Return whether an untried replica or slot is left."""
        session, slot = request.session, self._table.slots[request.slot]
        may_stay = self._is_eligible(SlotUse.FAIL_OVER, session, slot, step)
        if may_stay and _untried(request, ready_replicas(session, slot)):
            return True
        return self._can_move(request, step)

    def _can_move(self, request: InFlightRequest, step: DispatchStep) -> bool:
        """Return whether the episode may move to an untried slot."""
        session = request.session
        others = [slot for slot in self._table.slots.values() if slot.name != request.slot]
        return bool(request.episode_id) and any(
            session_eligibility(SlotUse.MOVE_IN, session, slot, step.now_ns).grade
            is Eligibility.YES
            and _untried(request, ready_replicas(session, slot))
            for slot in others
        )

    # replies of the router itself

    def reply_no_session(self, request: InFlightRequest, step: DispatchStep) -> None:
        """Reply NO_SESSION at once; the client may open a new session."""
        slot = self._table.slots[request.slot]
        text = f'slot {slot.name} cannot reply: {slot.text or "no replica has this session"}'
        self._drops.add('unanswered')
        self.fail(request, Status.NO_SESSION, text, step)

    def reply_no_slot(
        self, request: InFlightRequest, unavailable: NoSlotAvailable, step: DispatchStep
    ) -> None:
        """Reply NO_SLOT, or NO_SESSION if no slot is reachable, at once."""
        is_unreachable = unavailable.status is Status.NO_SESSION
        self._drops.add('unanswered' if is_unreachable else 'no_slot')
        self.fail(request, unavailable.status, str(unavailable), step)

    def reply_timeout(self, request: InFlightRequest, step: DispatchStep) -> None:
        """
        Reply as `reply_no_slot` when no replica has replied in time and no other one is left: the
        client need not wait for its own time limit.
        """
        slot, limit_s = self._table.slots[request.slot], self._table.rules.timeout_ns / 1e9
        text = f'slot {slot.name}: no reply within {limit_s:g} s'
        unavailable = NoSlotAvailable(self._table.slots.values(), text)
        self._drops.add('timeout')
        self.fail(request, unavailable.status, str(unavailable), step)

    def reply_quota(
        self, request: InFlightRequest, refusal: QuotaRefusal, step: DispatchStep
    ) -> None:
        """Reply QUOTA at once, to a request that was not begun; an earlier one continues."""
        self._drops.add('quota')
        self.fail(request, Status.QUOTA, refusal.text, step, retry_after_s=refusal.retry_after_s)

    def fail(
        self,
        request: InFlightRequest,
        status: Status,
        text: str,
        step: DispatchStep,
        *,
        retry_after_s: float = 0.0,
    ) -> None:
        """End a request with a reply without actions."""
        step.defer(self._transport.fail, request, status, text, retry_after_s)
        step.defer(self._observer.on_failed, request, status, text)
        request.end()


def _untried(request: InFlightRequest, replicas: list[Replica]) -> list[Replica]:
    return [replica for replica in replicas if replica.name not in request.tried_servers]
