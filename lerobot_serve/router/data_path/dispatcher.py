# SPDX-License-Identifier: Apache-2.0
"""
Route each request to a replica and relay the first reply.

The thread `intake` calls `on_request`, `answers` calls `on_answer`, `alarm` calls `on_timer`.
Decisions take microseconds and are made under one lock; the calls that follow are deferred until
the lock is released, so that one thread never waits for the publishing of another.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
import threading

from lerobot_serve.router.data_path.forwarder import (
    DeferredCalls,
    RequestForwarder,
    run_deferred,
    SLOT_LEFT,
)
from lerobot_serve.router.data_path.in_flight import (
    InFlightRequest,
    InFlightRequests,
    PendingReply,
    RequestPurpose,
)
from lerobot_serve.router.data_path.rules import DispatchRules
from lerobot_serve.router.data_path.transport import Transport
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
    no_slot_available,
    NoSlotAvailable,
)
from lerobot_serve.router.placement.placement_table import PlacementTable
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import SlotStats
from lerobot_serve.router.sessions.client_sessions import ClientSession, ClientSessions
from lerobot_serve.wire.chunk import read_reply_summary, ReplySummary
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.execution_report import ExecutionReport, find_execution_report
from lerobot_serve.wire.header import read_envelope, with_flags
from lerobot_serve.wire.schema import Flag, Status

# the replica is healthy, but has no such session
SESSION_LOST_STATUSES = (Status.NO_SESSION, Status.DRAINING)
# faults of the request or of the queue, not of the policy
REQUEST_FAULT_STATUSES = (Status.BAD_OBSERVATION, Status.TOO_LATE)


class Dispatcher:
    """See the module. `lock` guards all constructor arguments."""

    def __init__(
        self,
        slots: dict[str, Slot],
        robots: ClientSessions,
        sticky: PlacementTable,
        rules: DispatchRules,
        transport: Transport,
        stats: SlotStats,
        drops: DropCounters,
    ) -> None:
        self.lock = threading.Lock()
        self.slots, self.robots = slots, robots
        self.in_flight = InFlightRequests()
        self._episode_placement = EpisodePlacement(slots, sticky, stats)
        self.forwarder = RequestForwarder(
            slots, self._episode_placement, self.in_flight, transport, stats, drops, rules
        )
        self._replicas = {replica.name: replica for slot in slots.values() for replica in slot}
        self._transport, self._stats, self._drops = transport, stats, drops
        self._timer_ns: int | None = None
        self.hedges_won = 0

    # intake thread

    def on_request(self, raw: bytes, now_ns: int) -> None:
        """Place the episode of a robot's request, and send the request there."""
        try:
            header, client_id, episode_id = read_envelope(raw)
            executed = find_execution_report(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        deferred: DeferredCalls = []
        with self.lock:
            robot = self.robots.find(client_id, header.session_epoch)
            if robot is None:
                self._drops.add('no_session')
                return
            robot.heard_ns = now_ns
            self._note_executed(robot, executed)
            flight = InFlightRequest(robot, header, episode_id, raw, now_ns)
            self._place_and_send(flight, deferred, now_ns)
            self._schedule_timer(deferred)
        run_deferred(deferred)
        self._transport.on_requested(robot, raw, header, executed)

    def _note_executed(self, robot: ClientSession, executed: ExecutionReport | None) -> None:
        """Count executed actions for the episode of the previous request."""
        if executed and robot.executed and robot.slot:
            self._stats.record_executed(robot.slot, robot.executed, executed)
        robot.executed = executed or robot.executed

    def _place_and_send(
        self, flight: InFlightRequest, deferred: DeferredCalls, now_ns: int
    ) -> None:
        robot = flight.robot
        superseded = self.in_flight.begin(flight)
        request_id = f'{robot.ask.client_id}:{robot.ask.session_epoch}:{flight.seq}'
        split_percent = self.forwarder.rules.split_percent
        try:
            placement = self._episode_placement.place(flight, request_id, split_percent)
        except NoSlotAvailable as nowhere:
            # a probed slot may recover
            self.forwarder.send_probes(flight, deferred, now_ns)
            self.forwarder.refuse(flight, nowhere, deferred)
            deferred.append(partial(self.record_unanswered, superseded, 'superseded'))
            return
        flight.is_new = not placement.sticky
        send, send_to_unhealthy = self.forwarder.send, self.forwarder.send_to_unhealthy
        is_sent = send(flight, deferred, now_ns) or send_to_unhealthy(flight, deferred, now_ns)
        self.forwarder.send_probes(flight, deferred, now_ns)
        if not is_sent:
            self.forwarder.give_up(flight, deferred)
        # send first, publish the decision afterwards
        if flight.is_new:
            deferred.append(partial(self._transport.on_placed, robot, flight, placement))
        deferred.append(partial(self.record_unanswered, superseded, 'superseded'))

    def _schedule_timer(self, deferred: DeferredCalls) -> None:
        due_ns = self.in_flight.next_due_ns
        if due_ns is not None and (self._timer_ns is None or due_ns < self._timer_ns):
            self._timer_ns = due_ns
            deferred.append(self._transport.wake)

    # answers thread

    def on_answer(self, server: str, raw: bytes, now_ns: int) -> None:
        """Relay a reply, if it is the first to the newest request of its client."""
        try:
            answer = read_reply_summary(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        header, client_id, _ = answer.start
        deferred: DeferredCalls = []
        with self.lock:
            replica = self._replicas[server]
            replica.reply_received()
            asked = self.in_flight.take_pending(
                server, client_id, header.session_epoch, header.seq
            )
            if asked is None:
                self._drops.add('late_answer')
                return
            replica.latency.add((now_ns - asked.sent_ns) / 1e6)
            if answer.status == Status.OK and answer.policy == self.slots[replica.slot].policy:
                self._on_success(asked, replica, raw, answer, deferred, now_ns)
            else:
                self._on_failure(asked, replica, raw, answer, deferred, now_ns)
            self._schedule_timer(deferred)
        run_deferred(deferred)

    def _on_success(
        self,
        asked: PendingReply,
        replica: Replica,
        raw: bytes,
        answer: ReplySummary,
        deferred: DeferredCalls,
        now_ns: int,
    ) -> None:
        flight, robot = asked.flight, asked.flight.robot
        replica.counts['answers'] += 1
        replica.health.record_success()
        self.slots[replica.slot].health.record_success()
        if asked.purpose is RequestPurpose.TRIAL:
            return
        if flight.done:
            self._drops.add('late_answer')
            return
        # the replica is healthy: only a drain or a verdict withholds the reply
        conditions = self.slots[flight.slot].conditions(now_ns, Reachability.HEALTHY)
        if conditions.verdict in BARRING_VERDICTS and robot.policy != answer.policy:
            # a barred policy ends the episodes that it is known to drive, and gets no others
            conditions = replace(conditions, leaving=True)
        stay = check_eligibility(SlotUse.STAY, conditions)
        if stay.grade is Eligibility.NO:
            self._on_slot_left(flight, stay.reason, deferred, now_ns)
            return
        self.hedges_won += asked.purpose is RequestPurpose.HEDGE
        self._stats.record_reply(flight.slot, (now_ns - flight.began_ns) / 1e6)
        self.forwarder.blame(flight, self.slots[replica.slot], now_ns)
        if robot.policy not in ('', answer.policy):
            robot.flags |= Flag.POLICY_CHANGED
        robot.failed_slot, robot.policy = '', answer.policy
        if robot.flags:
            raw, robot.flags = with_flags(raw, robot.flags), 0
        deferred.append(partial(self._transport.reply, robot, raw))
        deferred.append(partial(self._transport.on_replied, flight, replica.name, raw, answer))
        flight.end()

    def _on_slot_left(
        self, flight: InFlightRequest, why: str, deferred: DeferredCalls, now_ns: int
    ) -> None:
        """Discard a reply of a slot that its episodes have left meanwhile."""
        self._drops.add(SLOT_LEFT)
        if not self.forwarder.fail_over(flight, SLOT_LEFT, deferred, now_ns, same_slot=False):
            self.forwarder.refuse(flight, no_slot_available(self.slots.values(), why), deferred)

    def _on_failure(
        self,
        asked: PendingReply,
        replica: Replica,
        raw: bytes,
        answer: ReplySummary,
        deferred: DeferredCalls,
        now_ns: int,
    ) -> None:
        """Handle a reply without actions, or with those of another policy."""
        flight = asked.flight
        reason = self._record_failure(asked, replica, answer, deferred, now_ns)
        if asked.purpose is RequestPurpose.TRIAL:
            if reason and answer.status not in SESSION_LOST_STATUSES:
                self._record_failed_probe(replica, now_ns)
            return
        if flight.done:
            self._drops.add('late_answer')
            return
        if self.in_flight.pending_servers(flight):
            self._drops.add('failed_over')
            return
        # the same policy fails again on the same observation
        same_slot = answer.status != Status.NOT_FINITE
        if reason and self.forwarder.fail_over(
            flight, reason, deferred, now_ns, same_slot=same_slot
        ):
            return
        if answer.status == Status.OK:
            self.forwarder.give_up(flight, deferred)
            return
        deferred.append(partial(self._transport.reply, flight.robot, raw))
        deferred.append(partial(self._transport.on_replied, flight, replica.name, raw, answer))
        flight.end()

    def _record_failure(
        self,
        asked: PendingReply,
        replica: Replica,
        answer: ReplySummary,
        deferred: DeferredCalls,
        now_ns: int,
    ) -> str:
        """Record a failure of the replica; return its reason, empty for a fault of the request."""
        replica.counts['failures'] += 1
        if answer.status == Status.OK:
            slot = self.slots[replica.slot]
            self._drops.add('wrong_policy')
            replica.mismatch = (
                f'{replica.name} replies as {answer.policy}, and slot {slot.name} is '
                f'{slot.policy}; all replicas of a slot must serve the same policy'
            )
            return 'wrong_policy'
        if answer.status in REQUEST_FAULT_STATUSES:
            return ''
        if answer.status in SESSION_LOST_STATUSES:
            deferred.append(
                partial(self._transport.reopen_session, asked.flight.robot, replica.name)
            )
            return 'no_session'
        if answer.status == Status.POLICY_ERROR and asked.purpose is not RequestPurpose.TRIAL:
            asked.flight.failed_servers.append(replica.name)
        return Status(answer.status).name.lower() if answer.status in list(Status) else 'failed'

    # alarm thread

    def on_timer(self, now_ns: int) -> int | None:
        """Hedge or fail over late requests; return the next due time, None to wait for a wake."""
        deferred: DeferredCalls = []
        with self.lock:
            for asked, is_overdue in self.in_flight.due(now_ns):
                (self._on_reply_timeout if is_overdue else self._on_late)(asked, deferred, now_ns)
            self._timer_ns = self.in_flight.next_due_ns
        run_deferred(deferred)
        return self._timer_ns

    def _on_late(self, asked: PendingReply, deferred: DeferredCalls, now_ns: int) -> None:
        """Handle a reply that is later than the hedge delay."""
        replica = self._replicas[asked.server]
        if replica.record_late(now_ns - asked.sent_ns, now_ns) and replica.health.is_healthy:
            replica.health.mark_unhealthy('unresponsive: repeated late replies', now_ns)
            self._reassign_pending(replica, deferred, now_ns)
        elif not asked.flight.done:
            self.forwarder.hedge(asked.flight, deferred, now_ns)

    def _reassign_pending(self, replica: Replica, deferred: DeferredCalls, now_ns: int) -> None:
        """Fail over all requests that are pending at a replica."""
        for owed in self.in_flight.pending_at(replica.name):
            flight = owed.flight
            if flight.done or self.in_flight.pending_servers(flight) != [replica.name]:
                continue
            if self.forwarder.has_others(flight, now_ns):
                self.forwarder.fail_over(flight, 'timeout', deferred, now_ns)

    def _on_reply_timeout(self, asked: PendingReply, deferred: DeferredCalls, now_ns: int) -> None:
        """Handle a reply that did not arrive within the time limit."""
        flight, replica = asked.flight, self._replicas[asked.server]
        replica.counts['failures'] += 1
        # a restarted server, or one that closed the session, sends no reply
        deferred.append(partial(self._transport.reopen_session, flight.robot, replica.name))
        if asked.purpose is RequestPurpose.TRIAL:
            self._record_failed_probe(replica, now_ns)
            return
        if replica.health.record_failure('timeout', now_ns):
            self._reassign_pending(replica, deferred, now_ns)
        if flight.done or self.in_flight.pending_servers(flight):
            return
        if not self.forwarder.fail_over(flight, 'timeout', deferred, now_ns):
            flight.end()
            deferred.append(partial(self.record_unanswered, flight, 'timeout'))

    # any thread, without the lock

    def record_unanswered(self, flight: InFlightRequest | None, reason: str) -> None:
        """Count and report a request that ended without a reply; None is ignored."""
        if flight:
            self._drops.add(reason)
            self._transport.on_dropped(flight, reason)

    def _record_failed_probe(self, replica: Replica, now_ns: int) -> None:
        slot = self.slots[replica.slot]
        (slot.health if replica.is_ready else replica.health).probe_failed(now_ns)
