"""
The data path: each request to a replica, the first answer to its robot.

The thread `intake` calls `on_request`, `answers` calls `on_answer`, `alarm` calls `on_time`. All
thinking is under one lock and takes microseconds; what follows from it is done behind it, so that
the publishing of one thread never waits for that of another.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
import threading

from lerobot_serve.router.asking import Acts, Asking, carry_out, LEAVES
from lerobot_serve.router.drops import Drops
from lerobot_serve.router.eligibility import BARRING, Grade, judge, Path, Reach
from lerobot_serve.router.flights import Asked, Flight, Flights, Purpose
from lerobot_serve.router.outside import Outside
from lerobot_serve.router.places import no_slot, NoSlot, Places
from lerobot_serve.router.replicas import Replica
from lerobot_serve.router.robots import Robot, Robots
from lerobot_serve.router.rules import Rules
from lerobot_serve.router.slots import Slot
from lerobot_serve.router.sticky import StickyTable
from lerobot_serve.router.tally import Tally
from lerobot_serve.wire.chunk import Answer, peek_answer
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.executed import Executed, find
from lerobot_serve.wire.header import peek, with_flags
from lerobot_serve.wire.schema import Flag, Status

# the replica is well, it only has no such session; another one has
ELSEWHERE = (Status.NO_SESSION, Status.DRAINING)
# the robot's own mistake, or that of the queue: no policy is to blame
NOT_THE_POLICYS = (Status.BAD_OBSERVATION, Status.TOO_LATE)


class Dispatcher:
    """See the module. `lock` guards everything that it was given."""

    def __init__(
        self,
        slots: dict[str, Slot],
        robots: Robots,
        sticky: StickyTable,
        rules: Rules,
        outside: Outside,
        tally: Tally,
        drops: Drops,
    ) -> None:
        self.lock = threading.Lock()
        self.slots, self.robots = slots, robots
        self.flights = Flights()
        self._places = Places(slots, sticky, tally)
        self.asking = Asking(slots, self._places, self.flights, outside, tally, drops, rules)
        self._replicas = {replica.name: replica for slot in slots.values() for replica in slot}
        self._outside, self._tally, self._drops = outside, tally, drops
        self._alarm_ns: int | None = None
        self.hedges_won = 0

    # intake thread

    def on_request(self, raw: bytes, now_ns: int) -> None:
        """Place the episode of a robot's request, and send the request there."""
        try:
            header, client_id, episode_id = peek(raw)
            executed = find(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        acts: Acts = []
        with self.lock:
            robot = self.robots.find(client_id, header.session_epoch)
            if robot is None:
                self._drops.add('no_session')
                return
            robot.heard_ns = now_ns
            self._note_executed(robot, executed)
            flight = Flight(robot, header, episode_id, raw, now_ns)
            self._route(flight, acts, now_ns)
            self._set_alarm(acts)
        carry_out(acts)
        self._outside.asked(robot, raw, header, executed)

    def _note_executed(self, robot: Robot, executed: Executed | None) -> None:
        """What was executed since the last request belongs to the last request's episode."""
        if executed and robot.executed and robot.slot:
            self._tally.executed(robot.slot, robot.executed, executed)
        robot.executed = executed or robot.executed

    def _route(self, flight: Flight, acts: Acts, now_ns: int) -> None:
        robot = flight.robot
        superseded = self.flights.begin(flight)
        request_id = f'{robot.ask.client_id}:{robot.ask.session_epoch}:{flight.seq}'
        split_percent = self.asking.rules.split_percent
        try:
            placement = self._places.place(flight, request_id, split_percent)
        except NoSlot as nowhere:
            # a slot that is probed meanwhile may answer later
            self.asking.try_others(flight, acts, now_ns)
            self.asking.refuse(flight, nowhere, acts)
            acts.append(partial(self.leave_unanswered, superseded, 'superseded'))
            return
        flight.is_new = not placement.cached
        send, send_to_suspect = self.asking.send, self.asking.send_to_suspect
        is_sent = send(flight, acts, now_ns) or send_to_suspect(flight, acts, now_ns)
        self.asking.try_others(flight, acts, now_ns)
        if not is_sent:
            self.asking.give_up(flight, acts)
        # the robot waits for its answer; who looks on can wait for the rest
        if flight.is_new:
            acts.append(partial(self._outside.decided, robot, flight, placement))
        acts.append(partial(self.leave_unanswered, superseded, 'superseded'))

    def _set_alarm(self, acts: Acts) -> None:
        due_ns = self.flights.next_due_ns
        if due_ns is not None and (self._alarm_ns is None or due_ns < self._alarm_ns):
            self._alarm_ns = due_ns
            acts.append(self._outside.wake)

    # answers thread

    def on_answer(self, server: str, raw: bytes, now_ns: int) -> None:
        """Send an answer to its robot, if it is the first to the newest request."""
        try:
            answer = peek_answer(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        header, client_id, _ = answer.start
        acts: Acts = []
        with self.lock:
            replica = self._replicas[server]
            replica.heard()
            asked = self.flights.answered(server, client_id, header.session_epoch, header.seq)
            if asked is None:
                self._drops.add('late_answer')
                return
            replica.latency.add((now_ns - asked.sent_ns) / 1e6)
            if answer.status == Status.OK and answer.policy == self.slots[replica.slot].policy:
                self._on_clean(asked, replica, raw, answer, acts, now_ns)
            else:
                self._on_failure(asked, replica, raw, answer, acts, now_ns)
            self._set_alarm(acts)
        carry_out(acts)

    def _on_clean(
        self,
        asked: Asked,
        replica: Replica,
        raw: bytes,
        answer: Answer,
        acts: Acts,
        now_ns: int,
    ) -> None:
        flight, robot = asked.flight, asked.flight.robot
        replica.counts['answers'] += 1
        replica.health.answered()
        self.slots[replica.slot].health.answered()
        if asked.purpose is Purpose.TRIAL:
            return
        if flight.done:
            self._drops.add('late_answer')
            return
        # it answers: only a drain or a verdict can keep its answer from the robot
        conditions = self.slots[flight.slot].conditions(now_ns, Reach.HEALTHY)
        if conditions.verdict in BARRING and robot.policy != answer.policy:
            # a barred policy ends the episodes that it is known to drive, and gets no others
            conditions = replace(conditions, leaving=True)
        stay = judge(Path.STAY, conditions)
        if stay.grade is Grade.NO:
            self._on_left(flight, stay.reason, acts, now_ns)
            return
        self.hedges_won += asked.purpose is Purpose.HEDGE
        self._tally.answered(flight.slot, (now_ns - flight.began_ns) / 1e6)
        self.asking.blame(flight, self.slots[replica.slot], now_ns)
        if robot.policy not in ('', answer.policy):
            robot.flags |= Flag.POLICY_CHANGED
        robot.failed_in, robot.policy = '', answer.policy
        if robot.flags:
            raw, robot.flags = with_flags(raw, robot.flags), 0
        acts.append(partial(self._outside.reply, robot, raw))
        acts.append(partial(self._outside.served, flight, replica.name, raw, answer))
        flight.end()

    def _on_left(self, flight: Flight, why: str, acts: Acts, now_ns: int) -> None:
        """An answer comes from a slot that its episodes have left meanwhile: no robot gets it."""
        self._drops.add(LEAVES)
        if not self.asking.try_again(flight, LEAVES, acts, now_ns, same_slot=False):
            self.asking.refuse(flight, no_slot(self.slots.values(), why), acts)

    def _on_failure(
        self,
        asked: Asked,
        replica: Replica,
        raw: bytes,
        answer: Answer,
        acts: Acts,
        now_ns: int,
    ) -> None:
        """An answer without actions, or with those of another policy."""
        flight = asked.flight
        reason = self._blame(asked, replica, answer, acts, now_ns)
        if asked.purpose is Purpose.TRIAL:
            if reason and answer.status not in ELSEWHERE:
                self._fail_trial(replica, now_ns)
            return
        if flight.done:
            self._drops.add('late_answer')
            return
        if self.flights.asked_of(flight):
            self._drops.add('failed_over')
            return
        # the same policy would say the same of the same observation
        same_slot = answer.status != Status.NOT_FINITE
        if reason and self.asking.try_again(flight, reason, acts, now_ns, same_slot=same_slot):
            return
        if answer.status == Status.OK:
            self.asking.give_up(flight, acts)
            return
        acts.append(partial(self._outside.reply, flight.robot, raw))
        acts.append(partial(self._outside.served, flight, replica.name, raw, answer))
        flight.end()

    def _blame(
        self, asked: Asked, replica: Replica, answer: Answer, acts: Acts, now_ns: int
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
        if answer.status in NOT_THE_POLICYS:
            return ''
        if answer.status in ELSEWHERE:
            acts.append(partial(self._outside.reopen, asked.flight.robot, replica.name))
            return 'no_session'
        if answer.status == Status.POLICY_ERROR and asked.purpose is not Purpose.TRIAL:
            asked.flight.failed_at.append(replica.name)
        return Status(answer.status).name.lower() if answer.status in list(Status) else 'failed'

    # alarm thread

    def on_time(self, now_ns: int) -> int | None:
        """Ask others for what is late; return when to be called next, None for when woken."""
        acts: Acts = []
        with self.lock:
            for asked, is_overdue in self.flights.due(now_ns):
                (self._on_overdue if is_overdue else self._on_late)(asked, acts, now_ns)
            self._alarm_ns = self.flights.next_due_ns
        carry_out(acts)
        return self._alarm_ns

    def _on_late(self, asked: Asked, acts: Acts, now_ns: int) -> None:
        """The answer is later than nearly all of the recent ones."""
        replica = self._replicas[asked.server]
        if replica.is_late(now_ns - asked.sent_ns, now_ns) and replica.health.is_healthy:
            replica.health.suspend('it has fallen silent', now_ns)
            self._leave(replica, acts, now_ns)
        elif not asked.flight.done:
            self.asking.hedge(asked.flight, acts, now_ns)

    def _leave(self, replica: Replica, acts: Acts, now_ns: int) -> None:
        """Nothing is expected of a replica any more: ask others for all that it owes."""
        for owed in self.flights.owed_by(replica.name):
            flight = owed.flight
            if flight.done or self.flights.asked_of(flight) != [replica.name]:
                continue
            if self.asking.has_others(flight, now_ns):
                self.asking.try_again(flight, 'timeout', acts, now_ns)

    def _on_overdue(self, asked: Asked, acts: Acts, now_ns: int) -> None:
        """The time of an answer is over."""
        flight, replica = asked.flight, self._replicas[asked.server]
        replica.counts['failures'] += 1
        # a server that was started anew, or has given up the session, answers nothing
        acts.append(partial(self._outside.reopen, flight.robot, replica.name))
        if asked.purpose is Purpose.TRIAL:
            self._fail_trial(replica, now_ns)
            return
        if replica.health.failed('timeout', now_ns):
            self._leave(replica, acts, now_ns)
        if flight.done or self.flights.asked_of(flight):
            return
        if not self.asking.try_again(flight, 'timeout', acts, now_ns):
            flight.end()
            acts.append(partial(self.leave_unanswered, flight, 'timeout'))

    # any thread, without the lock

    def leave_unanswered(self, flight: Flight | None, reason: str) -> None:
        """Count and tell that a request, if there is one, was ended without an answer."""
        if flight:
            self._drops.add(reason)
            self._outside.unanswered(flight, reason)

    def _fail_trial(self, replica: Replica, now_ns: int) -> None:
        slot = self.slots[replica.slot]
        (slot.health if replica.is_ready else replica.health).trial_failed(now_ns)
