"""
The data path: each request to a replica, the first answer to its robot.

The thread `intake` calls `on_request`, `answers` calls `on_answer`, `alarm` calls `on_timer`. All
thinking is under one lock and takes microseconds; what follows from it is done behind it, so that
the publishing of one thread never waits for that of another.
"""

from __future__ import annotations

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

# the replica is well, it only has no such session; another one has
SESSION_LOST_STATUSES = (Status.NO_SESSION, Status.DRAINING)
# the robot's own mistake, or that of the queue: no policy is to blame
REQUEST_FAULT_STATUSES = (Status.BAD_OBSERVATION, Status.TOO_LATE)


class Dispatcher:
    """See the module. `lock` guards everything that it was given."""

    def __init__(
        self,
        slots: dict[str, Slot],
        robots: ClientSessions,
        sticky: PlacementTable,
        rules: DispatchRules,
        outside: Transport,
        tally: SlotStats,
        drops: DropCounters,
    ) -> None:
        self.lock = threading.Lock()
        self.slots, self.robots = slots, robots
        self.flights = InFlightRequests()
        self._episode_placement = EpisodePlacement(slots, sticky, tally)
        self.asking = RequestForwarder(
            slots, self._episode_placement, self.flights, outside, tally, drops, rules
        )
        self._replicas = {replica.name: replica for slot in slots.values() for replica in slot}
        self._outside, self._tally, self._drops = outside, tally, drops
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
        acts: DeferredCalls = []
        with self.lock:
            robot = self.robots.find(client_id, header.session_epoch)
            if robot is None:
                self._drops.add('no_session')
                return
            robot.heard_ns = now_ns
            self._note_executed(robot, executed)
            flight = InFlightRequest(robot, header, episode_id, raw, now_ns)
            self._place_and_send(flight, acts, now_ns)
            self._schedule_timer(acts)
        run_deferred(acts)
        self._outside.asked(robot, raw, header, executed)

    def _note_executed(self, robot: ClientSession, executed: ExecutionReport | None) -> None:
        """What was executed since the last request belongs to the last request's episode."""
        if executed and robot.executed and robot.slot:
            self._tally.executed(robot.slot, robot.executed, executed)
        robot.executed = executed or robot.executed

    def _place_and_send(self, flight: InFlightRequest, acts: DeferredCalls, now_ns: int) -> None:
        robot = flight.robot
        superseded = self.flights.begin(flight)
        request_id = f'{robot.ask.client_id}:{robot.ask.session_epoch}:{flight.seq}'
        split_percent = self.asking.rules.split_percent
        try:
            placement = self._episode_placement.place(flight, request_id, split_percent)
        except NoSlotAvailable as nowhere:
            # a slot that is probed meanwhile may answer later
            self.asking.send_probes(flight, acts, now_ns)
            self.asking.refuse(flight, nowhere, acts)
            acts.append(partial(self.record_unanswered, superseded, 'superseded'))
            return
        flight.is_new = not placement.cached
        send, send_to_unhealthy = self.asking.send, self.asking.send_to_unhealthy
        is_sent = send(flight, acts, now_ns) or send_to_unhealthy(flight, acts, now_ns)
        self.asking.send_probes(flight, acts, now_ns)
        if not is_sent:
            self.asking.give_up(flight, acts)
        # the robot waits for its answer; who looks on can wait for the rest
        if flight.is_new:
            acts.append(partial(self._outside.decided, robot, flight, placement))
        acts.append(partial(self.record_unanswered, superseded, 'superseded'))

    def _schedule_timer(self, acts: DeferredCalls) -> None:
        due_ns = self.flights.next_due_ns
        if due_ns is not None and (self._timer_ns is None or due_ns < self._timer_ns):
            self._timer_ns = due_ns
            acts.append(self._outside.wake)

    # answers thread

    def on_answer(self, server: str, raw: bytes, now_ns: int) -> None:
        """Send an answer to its robot, if it is the first to the newest request."""
        try:
            answer = read_reply_summary(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        header, client_id, _ = answer.start
        acts: DeferredCalls = []
        with self.lock:
            replica = self._replicas[server]
            replica.heard()
            asked = self.flights.answered(server, client_id, header.session_epoch, header.seq)
            if asked is None:
                self._drops.add('late_answer')
                return
            replica.latency.add((now_ns - asked.sent_ns) / 1e6)
            if answer.status == Status.OK and answer.policy == self.slots[replica.slot].policy:
                self._on_success(asked, replica, raw, answer, acts, now_ns)
            else:
                self._on_failure(asked, replica, raw, answer, acts, now_ns)
            self._schedule_timer(acts)
        run_deferred(acts)

    def _on_success(
        self,
        asked: PendingReply,
        replica: Replica,
        raw: bytes,
        answer: ReplySummary,
        acts: DeferredCalls,
        now_ns: int,
    ) -> None:
        flight, robot = asked.flight, asked.flight.robot
        replica.counts['answers'] += 1
        replica.health.answered()
        self.slots[replica.slot].health.answered()
        if asked.purpose is RequestPurpose.TRIAL:
            return
        if flight.done:
            self._drops.add('late_answer')
            return
        # it answers: only a drain or a verdict can keep its answer from the robot
        stay = check_eligibility(
            SlotUse.STAY, self.slots[flight.slot].conditions(now_ns, Reachability.HEALTHY)
        )
        if stay.grade is Eligibility.NO:
            self._on_slot_left(flight, stay.reason, acts, now_ns)
            return
        self.hedges_won += asked.purpose is RequestPurpose.HEDGE
        self._tally.answered(flight.slot, (now_ns - flight.began_ns) / 1e6)
        self.asking.blame(flight, self.slots[replica.slot], now_ns)
        if robot.policy not in ('', answer.policy):
            robot.flags |= Flag.POLICY_CHANGED
        robot.failed_slot, robot.policy = '', answer.policy
        if robot.flags:
            raw, robot.flags = with_flags(raw, robot.flags), 0
        acts.append(partial(self._outside.reply, robot, raw))
        acts.append(partial(self._outside.served, flight, replica.name, raw, answer))
        flight.end()

    def _on_slot_left(
        self, flight: InFlightRequest, why: str, acts: DeferredCalls, now_ns: int
    ) -> None:
        """An answer comes from a slot that its episodes have left meanwhile: no robot gets it."""
        self._drops.add(SLOT_LEFT)
        if not self.asking.fail_over(flight, SLOT_LEFT, acts, now_ns, same_slot=False):
            self.asking.refuse(flight, no_slot_available(self.slots.values(), why), acts)

    def _on_failure(
        self,
        asked: PendingReply,
        replica: Replica,
        raw: bytes,
        answer: ReplySummary,
        acts: DeferredCalls,
        now_ns: int,
    ) -> None:
        """An answer without actions, or with those of another policy."""
        flight = asked.flight
        reason = self._record_failure(asked, replica, answer, acts, now_ns)
        if asked.purpose is RequestPurpose.TRIAL:
            if reason and answer.status not in SESSION_LOST_STATUSES:
                self._record_failed_probe(replica, now_ns)
            return
        if flight.done:
            self._drops.add('late_answer')
            return
        if self.flights.asked_of(flight):
            self._drops.add('failed_over')
            return
        # the same policy would say the same of the same observation
        same_slot = answer.status != Status.NOT_FINITE
        if reason and self.asking.fail_over(flight, reason, acts, now_ns, same_slot=same_slot):
            return
        if answer.status == Status.OK:
            self.asking.give_up(flight, acts)
            return
        acts.append(partial(self._outside.reply, flight.robot, raw))
        acts.append(partial(self._outside.served, flight, replica.name, raw, answer))
        flight.end()

    def _record_failure(
        self,
        asked: PendingReply,
        replica: Replica,
        answer: ReplySummary,
        acts: DeferredCalls,
        now_ns: int,
    ) -> str:
        """Hold a failure against the replica; return it in a word, empty for one of the robot."""
        replica.counts['failures'] += 1
        if answer.status == Status.OK:
            slot = self.slots[replica.slot]
            self._drops.add('wrong_policy')
            replica.stranger = (
                f'{replica.name} answers as {answer.policy}, and slot {slot.name} is '
                f'{slot.policy}; all replicas of a slot must serve the same policy'
            )
            return 'wrong_policy'
        if answer.status in REQUEST_FAULT_STATUSES:
            return ''
        if answer.status in SESSION_LOST_STATUSES:
            acts.append(partial(self._outside.reopen_session, asked.flight.robot, replica.name))
            return 'no_session'
        if answer.status == Status.POLICY_ERROR and asked.purpose is not RequestPurpose.TRIAL:
            asked.flight.failed_servers.append(replica.name)
        return Status(answer.status).name.lower() if answer.status in list(Status) else 'failed'

    # alarm thread

    def on_timer(self, now_ns: int) -> int | None:
        """Ask others for what is late; return when to be called next, None for when woken."""
        acts: DeferredCalls = []
        with self.lock:
            for asked, is_overdue in self.flights.due(now_ns):
                (self._on_reply_timeout if is_overdue else self._on_late)(asked, acts, now_ns)
            self._timer_ns = self.flights.next_due_ns
        run_deferred(acts)
        return self._timer_ns

    def _on_late(self, asked: PendingReply, acts: DeferredCalls, now_ns: int) -> None:
        """The answer is later than nearly all of the recent ones."""
        replica = self._replicas[asked.server]
        if replica.is_late(now_ns - asked.sent_ns, now_ns) and replica.health.is_healthy:
            replica.health.suspend('it has fallen silent', now_ns)
            self._leave(replica, acts, now_ns)
        elif not asked.flight.done:
            self.asking.hedge(asked.flight, acts, now_ns)

    def _leave(self, replica: Replica, acts: DeferredCalls, now_ns: int) -> None:
        """Nothing is expected of a replica any more: ask others for all that it owes."""
        for owed in self.flights.pending_at(replica.name):
            flight = owed.flight
            if flight.done or self.flights.asked_of(flight) != [replica.name]:
                continue
            if self.asking.has_others(flight, now_ns):
                self.asking.fail_over(flight, 'timeout', acts, now_ns)

    def _on_reply_timeout(self, asked: PendingReply, acts: DeferredCalls, now_ns: int) -> None:
        """The time of an answer is over."""
        flight, replica = asked.flight, self._replicas[asked.server]
        replica.counts['failures'] += 1
        # a server that was started anew, or has given up the session, answers nothing
        acts.append(partial(self._outside.reopen_session, flight.robot, replica.name))
        if asked.purpose is RequestPurpose.TRIAL:
            self._record_failed_probe(replica, now_ns)
            return
        if replica.health.failed('timeout', now_ns):
            self._leave(replica, acts, now_ns)
        if flight.done or self.flights.asked_of(flight):
            return
        if not self.asking.fail_over(flight, 'timeout', acts, now_ns):
            flight.end()
            acts.append(partial(self.record_unanswered, flight, 'timeout'))

    # any thread, without the lock

    def record_unanswered(self, flight: InFlightRequest | None, reason: str) -> None:
        """Count and tell that a request, if there is one, was ended without an answer."""
        if flight:
            self._drops.add(reason)
            self._outside.unanswered(flight, reason)

    def _record_failed_probe(self, replica: Replica, now_ns: int) -> None:
        slot = self.slots[replica.slot]
        (slot.health if replica.is_ready else replica.health).probe_failed(now_ns)
