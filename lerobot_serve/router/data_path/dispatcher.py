# SPDX-License-Identifier: Apache-2.0
"""
Route each request to a replica and relay the first reply.

The thread `intake` calls `on_request`, `replies` calls `on_reply`, `alarm` runs the timer.
Decisions take microseconds and are made under RoutingTable.lock; the calls that follow are
deferred until the lock is released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
import threading

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.data_path.chunk import read_reply_summary, ReplySummary
from lerobot_serve.contract.data_path.execution_report import (
    ExecutionReport,
    find_execution_report,
)
from lerobot_serve.contract.data_path.header import Header, read_envelope, with_flags
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.schema import Flag, MsgType, Status
from lerobot_serve.quotas import NoSessionLimiter, QuotaRefusal
from lerobot_serve.router.data_path.dispatch_step import DispatchStep, RequestTimer
from lerobot_serve.router.data_path.forwarder import RequestForwarder, SLOT_LEFT
from lerobot_serve.router.data_path.in_flight import InFlightRequest, PendingReply, RequestPurpose
from lerobot_serve.router.data_path.replica_transport import ReplicaTransport
from lerobot_serve.router.data_path.request_observer import report_dropped, RequestObserver
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.data_path.uncharged_requests import SentRequest
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.placement.eligibility import (
    BARRING_VERDICTS,
    check_eligibility,
    Eligibility,
    Reachability,
    SlotUse,
)
from lerobot_serve.router.placement.episode_placement import (
    EpisodePlacement,
    NoSlotAvailable,
)
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.reply_policy import judge, ReplyPolicy
from lerobot_serve.router.sessions.client_sessions import ClientSession

DRAINING_TEXT = 'the router is draining; open a session with another server'
# the replica is healthy and has lost the session
SESSION_LOST_STATUSES = (Status.NO_SESSION, Status.DRAINING)
# faults of the request, of the queue or of the client, not of the policy
REQUEST_FAULT_STATUSES = (Status.BAD_OBSERVATION, Status.TOO_LATE, Status.QUOTA)


@dataclass(slots=True, eq=False)
class ReceivedReply:
    """A reply of a replica, and the pending reply that it settles."""

    pending: PendingReply
    replica: Replica
    raw: bytes
    summary: ReplySummary
    policy: ReplyPolicy = ReplyPolicy.OTHER

    @property
    def request(self) -> InFlightRequest:
        return self.pending.request

    @property
    def is_probe(self) -> bool:
        return self.pending.purpose is RequestPurpose.PROBE

    @property
    def is_change_declared(self) -> bool:
        """Whether the replica says that its policy has changed for this session."""
        return bool(self.summary.start.header.flags & Flag.POLICY_CHANGED)


class Dispatcher:
    """
    See the module. `reopen_session` queues the reopening of a session that a replica lost;
    `record_swap` records that a replica replies with another policy, under the lock.
    """

    def __init__(
        self,
        table: RoutingTable,
        transport: ReplicaTransport,
        observer: RequestObserver,
        drops: DropCounters,
        reopen_session: Callable[[ClientSession, str], None],
        record_swap: Callable[[Replica, str], None],
    ) -> None:
        self._record_swap = record_swap
        self._table = table
        self.placement = EpisodePlacement(table.slots, table.placements, table.stats)
        self._transport, self._observer, self._drops = transport, observer, drops
        self._reopen_session = reopen_session
        self._forwarder = RequestForwarder(table, self.placement, transport, observer, drops)
        self.hedging = self._forwarder.hedging
        self.timer = RequestTimer()
        self._no_session_limiter = NoSessionLimiter()
        # next due time that the timer knows
        self._timer_ns: int | None = None

    # intake thread

    def on_request(self, raw: Raw, now_ns: int) -> None:
        """Place the episode of a client's request and send the request to a replica."""
        try:
            header, client_id, episode_id = read_envelope(raw)
            executed = find_execution_report(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        step = DispatchStep(now_ns)
        refusal = None
        with self._table.lock:
            session = self._table.sessions.find(client_id, header.session_epoch)
            if session:
                self._record_executed(session, executed)
                request = InFlightRequest(session, header, episode_id, raw, now_ns)
                refusal = self._begin(request, step)
        if session is None:
            self._refuse_unknown(header, client_id, episode_id, step)
        step.run()
        if session is None:
            return
        if refusal:
            self._observer.on_refused(session, header, executed)
        else:
            self._observer.on_requested(session, raw, header, executed)

    def _begin(self, request: InFlightRequest, step: DispatchStep) -> QuotaRefusal | None:
        """Send a request, or return why the quota of its client forbids that."""
        session = request.session
        session.last_heard_ns = step.now_ns
        refusal = self._table.quotas.admit(
            session.request.client_id, len(request.raw), step.now_ns
        )
        if refusal:
            session.is_held_back = True
            self._forwarder.reply_quota(request, refusal, step)
        else:
            self._place_and_send(request, step)
            self._schedule_timer(step)
        return refusal

    def refuse(self, raw: Raw, now_ns: int) -> None:
        """Reply DRAINING to a request of an open session."""
        try:
            header, client_id, episode_id = read_envelope(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        step = DispatchStep(now_ns)
        session = self._table.sessions.find(client_id, header.session_epoch)
        if session is None:
            self._refuse_unknown(header, client_id, episode_id, step)
            step.run()
            return
        session.last_heard_ns = now_ns
        self._drops.add('draining')
        request = InFlightRequest(session, header, episode_id, raw, now_ns)
        self._forwarder.fail(request, Status.DRAINING, DRAINING_TEXT, step)
        step.run()

    def _refuse_unknown(
        self, header: Header, client_id: str, episode_id: str, step: DispatchStep
    ) -> None:
        """
        Reply NO_SESSION at once: a client may take a router that was started again for the one
        that knew it.
        """
        self._drops.add('no_session')
        is_request = header.msg_type == MsgType.OBSERVATION
        if is_request and self._no_session_limiter.allows_reply(
            client_id, header.session_epoch, step.now_ns
        ):
            step.defer(self._transport.refuse_unknown, header, client_id, episode_id)

    def _record_executed(self, session: ClientSession, executed: ExecutionReport | None) -> None:
        """Count executed actions and a halt for the episode of the previous request."""
        before = session.executed
        if executed and before and session.slot:
            # the ladder of a robot without quota says nothing of the policy
            fallbacks = before.fallbacks if session.is_held_back else executed.fallbacks
            counted = replace(executed, fallbacks=fallbacks)
            self._table.stats.record_executed(session.slot, before, counted)
        if executed:
            session.is_held_back = False
        was_halted = session.executed is not None and session.executed.halt
        if executed and executed.halt and session.slot and not was_halted:
            self._table.stats.record_halt(session.slot)
        session.executed = executed or session.executed

    def _place_and_send(self, request: InFlightRequest, step: DispatchStep) -> None:
        forwarder, superseded = self._forwarder, self._table.in_flight.begin(request)
        try:
            placement = self.placement.place(request)
        except NoSlotAvailable as unavailable:
            # probes let an unhealthy slot recover
            forwarder.send_probes(request, step)
            forwarder.reply_no_slot(request, unavailable, step)
        else:
            request.is_new = not placement.sticky
            is_sent = forwarder.send(request, step) or forwarder.send_to_unhealthy(request, step)
            forwarder.send_probes(request, step)
            if not is_sent:
                forwarder.reply_no_session(request, step)
            # send first, report the placement afterwards
            if request.is_new:
                forwarder.report_placement(request, placement, step)
        if superseded:
            step.defer(self._drop, superseded, 'superseded')

    def _schedule_timer(self, step: DispatchStep) -> None:
        due_ns = self._table.in_flight.next_due_ns
        if due_ns is not None and (self._timer_ns is None or due_ns < self._timer_ns):
            self._timer_ns = due_ns
            step.defer(self.timer.wake)

    # replies thread

    def on_reply(self, server: str, raw: bytes, now_ns: int) -> None:
        """Relay the reply if it is the first to the newest request of its client."""
        try:
            summary = read_reply_summary(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        header, client_id, _ = summary.start
        step = DispatchStep(now_ns)
        with self._table.lock:
            replica = self._table.replicas[server]
            replica.reply_received()
            pending = self._table.in_flight.take_pending(
                server, client_id, header.session_epoch, header.seq
            )
            # late replies count too: the server did the work
            sent = SentRequest(server, header.session_epoch, header.seq)
            if self._table.uncharged.take(client_id, sent):
                self._table.quotas.charge(client_id, summary.inference_ms, now_ns)
            if pending is None:
                self._drops.add('late_reply')
                return
            replica.latency.add((now_ns - pending.sent_ns) / 1e6)
            reply = ReceivedReply(pending, replica, raw, summary)
            if summary.status == Status.OK and self._is_served(reply, now_ns):
                self._on_success(reply, step)
            else:
                self._on_failure(reply, step)
            self._schedule_timer(step)
        step.run()

    def _is_served(self, reply: ReceivedReply, now_ns: int) -> bool:
        """Return whether the slot serves the policy of a reply, which may announce a swap."""
        policy, replica = reply.summary.policy, reply.replica
        slot = self._table.slot_of(replica)
        reply.policy = judge(
            policy,
            slot=slot.policy,
            reported=replica.policy,
            replaced=replica.replaced_policy,
            driving=reply.request.session.policy,
            before_swap=reply.pending.sent_ns <= replica.swapped_ns,
            is_declared=reply.is_change_declared,
        )
        if reply.policy is ReplyPolicy.NEW:
            self._record_swap(replica, policy)
            return policy == slot.policy
        if reply.policy is ReplyPolicy.REPLACED:
            return not slot.has_left(policy, now_ns)
        return reply.policy is ReplyPolicy.SERVED

    def _on_success(self, reply: ReceivedReply, step: DispatchStep) -> None:
        table, replica, request = self._table, reply.replica, reply.request
        session, policy = request.session, reply.summary.policy
        replica.counts['chunks'] += 1
        replica.health.record_success()
        table.slot_of(replica).health.record_success()
        if reply.is_probe:
            return
        if self._is_too_late(reply):
            return
        # the replica is healthy: only a drain or a verdict withholds the reply
        conditions = table.slots[request.slot].conditions(step.now_ns, Reachability.HEALTHY)
        is_barred = conditions.verdict in BARRING_VERDICTS and session.policy != policy
        # nor does a policy that may not begin take over an episode of the one that it replaced
        has_taken_over = session.policy not in ('', policy)
        if is_barred or (has_taken_over and conditions.unmet_requirements):
            # a barred policy finishes only the episodes that it is known to drive
            conditions = replace(conditions, leaving=True)
        stay = check_eligibility(SlotUse.STAY, conditions)
        if stay.grade is Eligibility.NO:
            self._on_slot_left(request, stay.reason, step)
            return
        self.hedging.won += reply.pending.purpose is RequestPurpose.HEDGE
        table.stats.record_reply(
            request.slot,
            (step.now_ns - request.started_ns) / 1e6,
            in_slot_ms=(step.now_ns - request.slot_since_ns) / 1e6,
        )
        self._forwarder.record_policy_failures(request, table.slot_of(replica), step.now_ns)
        if session.record_reply(policy):
            session.flags |= Flag.POLICY_CHANGED
        session.failed_slot = ''
        # a replica flags its first chunk after a swap; the client may know of it by another one
        if session.flags or reply.is_change_declared:
            reply.raw = with_flags(reply.raw, session.flags, cleared=Flag.POLICY_CHANGED)
            session.flags = 0
        self._relay(reply, step)

    def _is_too_late(self, reply: ReceivedReply) -> bool:
        """Count a reply to a request that has ended, or has left the slot of the replica."""
        if reply.request.is_done:
            self._drops.add('late_reply')
            return True
        # the conditions of its new slot say nothing of the policy that has replied
        if reply.pending.has_left_slot:
            self._drops.add(SLOT_LEFT)
        return reply.pending.has_left_slot

    def _relay(self, reply: ReceivedReply, step: DispatchStep) -> None:
        """End a request with the reply of a replica."""
        request = reply.request
        step.defer(self._transport.reply, request.session, reply.raw)
        step.defer(
            self._observer.on_replied, request, reply.replica.name, reply.raw, reply.summary
        )
        request.end()

    def _on_slot_left(self, request: InFlightRequest, why: str, step: DispatchStep) -> None:
        """Discard the reply of a slot that the episode must leave, and fail over."""
        self._drops.add(SLOT_LEFT)
        if not self._forwarder.fail_over(request, SLOT_LEFT, step, same_slot=False):
            unavailable = NoSlotAvailable(self._table.slots.values(), why)
            self._forwarder.reply_no_slot(request, unavailable, step)

    def _on_failure(self, reply: ReceivedReply, step: DispatchStep) -> None:
        """Handle a reply without actions, or of another policy than the slot's."""
        request, status = reply.request, reply.summary.status
        reason = self._record_failure(reply, step)
        if reply.is_probe:
            if reason and status not in SESSION_LOST_STATUSES:
                self._record_failed_probe(reply.replica, step.now_ns)
            return
        if self._is_too_late(reply):
            return
        if self._table.in_flight.pending_servers(request):
            self._drops.add('failed_over')
            return
        # the same policy fails on the same observation again
        same_slot = status != Status.NOT_FINITE
        if reason and self._forwarder.fail_over(request, reason, step, same_slot=same_slot):
            return
        if status == Status.OK:
            self._forwarder.reply_no_session(request, step)
            return
        self._relay(reply, step)

    def _record_failure(self, reply: ReceivedReply, step: DispatchStep) -> str:
        """Record a failure of the replica; return its reason, empty for a fault of the request."""
        replica, status = reply.replica, reply.summary.status
        replica.counts['failures'] += 1
        if status == Status.OK:
            slot = self._table.slot_of(replica)
            self._drops.add('wrong_policy')
            # a reply from before a swap says nothing of the policy that is served now
            if reply.policy not in (ReplyPolicy.REPLACED, ReplyPolicy.STALE):
                replica.mismatch = (
                    f'{replica.name} replies as {reply.summary.policy}, and slot {slot.name} is '
                    f'{slot.policy}; all replicas of a slot must serve the same policy'
                )
            return 'wrong_policy'
        if status in REQUEST_FAULT_STATUSES:
            return ''
        if status in SESSION_LOST_STATUSES:
            step.defer(self._reopen_session, reply.request.session, replica.name)
            return 'no_session'
        if status == Status.POLICY_ERROR and not reply.is_probe:
            reply.request.failed_servers.append(replica.name)
        return Status(status).name.lower() if status in list(Status) else 'failed'

    # alarm thread

    def run_timer(self, stop: threading.Event, clock: Callable[[], int]) -> None:
        """Handle late replies until `stop` is set and the timer is woken."""
        self.timer.run(stop, clock, self.on_timer)

    def on_timer(self, now_ns: int) -> int | None:
        """Hedge or fail over late requests; return the next due time, None without one."""
        step, in_flight = DispatchStep(now_ns), self._table.in_flight
        with self._table.lock:
            for pending, is_overdue in in_flight.due(now_ns):
                (self._on_reply_timeout if is_overdue else self._on_late)(pending, step)
            due_ns = self._timer_ns = in_flight.next_due_ns
        step.run()
        return due_ns

    def _on_late(self, pending: PendingReply, step: DispatchStep) -> None:
        """Handle a reply that is later than the hedge delay."""
        replica, now_ns = self._table.replicas[pending.server], step.now_ns
        if replica.record_late(now_ns - pending.sent_ns, now_ns) and replica.health.is_healthy:
            replica.health.mark_unhealthy('unresponsive: repeated late replies', now_ns)
            self._reassign_pending(replica, step)
        elif not (pending.request.is_done or pending.has_left_slot):
            self._forwarder.hedge(pending.request, step)

    def _reassign_pending(self, replica: Replica, step: DispatchStep) -> None:
        """Fail over all requests that are pending at a replica."""
        in_flight = self._table.in_flight
        for pending in in_flight.pending_at(replica.name):
            request = pending.request
            if request.is_done or in_flight.pending_servers(request) != [replica.name]:
                continue
            if self._forwarder.has_alternative(request, step):
                self._forwarder.fail_over(request, 'timeout', step)

    def _on_reply_timeout(self, pending: PendingReply, step: DispatchStep) -> None:
        """Handle a reply that did not arrive within the time limit."""
        request, replica = pending.request, self._table.replicas[pending.server]
        replica.counts['failures'] += 1
        # a restarted server, or one that closed the session, sends no reply
        step.defer(self._reopen_session, request.session, replica.name)
        if pending.purpose is RequestPurpose.PROBE:
            self._record_failed_probe(replica, step.now_ns)
            return
        if replica.health.record_failure('timeout', step.now_ns):
            self._reassign_pending(replica, step)
        if request.is_done or self._table.in_flight.pending_servers(request):
            return
        if not self._forwarder.fail_over(request, 'timeout', step):
            self._forwarder.reply_timeout(request, step)

    def _record_failed_probe(self, replica: Replica, now_ns: int) -> None:
        slot = self._table.slot_of(replica)
        (slot.health if replica.is_ready else replica.health).probe_failed(now_ns)

    # any thread, without the lock

    def _drop(self, request: InFlightRequest, reason: str) -> None:
        report_dropped(request, reason, self._drops, self._observer)
