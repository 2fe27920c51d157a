"""
Whom a request goes to: its replica, a second one when that is late, another when it fails, and
those that want to be tried again. Plain; the dispatcher's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isnan

from lerobot_serve.router.drops import Drops
from lerobot_serve.router.eligibility import Grade, Path
from lerobot_serve.router.flights import Asked, Flight, Flights, Purpose
from lerobot_serve.router.outside import Outside
from lerobot_serve.router.places import (
    may,
    must_leave,
    NoSlot,
    Places,
    put_first,
    suspects,
    usable,
)
from lerobot_serve.router.replicas import Replica
from lerobot_serve.router.rules import HEDGE_FLOOR_NS, HedgeBudget, Rules
from lerobot_serve.router.slots import Slot
from lerobot_serve.router.tally import Tally
from lerobot_serve.wire.schema import Flag, Status

# failures that need not be those of a slot's other replicas
OF_THE_REPLICA = ('timeout', 'wrong_policy', 'policy_error')
# the slot's running episodes leave; no failure of it
LEAVES = 'slot_left'
# what is done once the lock is free, in order
Acts = list[Callable[[], None]]


class Asking:
    """`rules` may be replaced at any time."""

    def __init__(
        self,
        slots: dict[str, Slot],
        places: Places,
        flights: Flights,
        outside: Outside,
        tally: Tally,
        drops: Drops,
        rules: Rules,
    ) -> None:
        self.slots, self.flights = slots, flights
        self.rules = rules
        self._places, self._outside = places, outside
        self._tally, self._drops = tally, drops
        # a slot that is slow must not use up what the other one needs
        self._budgets = {name: HedgeBudget() for name in slots}
        self.hedges = 0

    @property
    def rules(self) -> Rules:
        return self._rules

    @rules.setter
    def rules(self, rules: Rules) -> None:
        self._rules = rules
        for slot in self.slots.values():
            slot.has_share = rules.share_percent(slot.name) > 0
            slot.is_spare = slot.name in rules.spare

    def send(self, flight: Flight, acts: Acts, now_ns: int) -> bool:
        """Ask the first replica of the slot that was not asked yet; False when there is none."""
        slot = self.slots[flight.slot]
        untried = _untried(flight, usable(flight.robot, slot))
        if not untried:
            return False
        if not flight.tried:
            self._budgets[slot.name].earn(self.rules.hedge_percent)
        asked = self._send_to(flight, slot, untried[0], acts, now_ns)
        if len(untried) > 1:
            self._plan_hedge(asked, untried[0], now_ns)
        return True

    def send_to_suspect(self, flight: Flight, acts: Acts, now_ns: int) -> bool:
        """Ask one that failed lately, where nobody else is left; False when there is none."""
        slot = self.slots[flight.slot]
        untried = _untried(flight, suspects(flight.robot, slot))
        if untried:
            self._send_to(flight, slot, untried[0], acts, now_ns)
        return bool(untried)

    def _send_to(
        self, flight: Flight, slot: Slot, replica: Replica, acts: Acts, now_ns: int
    ) -> Asked:
        robot = flight.robot
        if robot.server not in ('', replica.name) and not replica.is_stateless:
            # what the policy remembered stays behind
            robot.flags |= Flag.STATE_LOST
        robot.server = replica.name
        put_first(robot, slot, replica)
        return self._ask(flight, replica, Purpose.LIVE, acts, now_ns)

    def _ask(
        self, flight: Flight, replica: Replica, purpose: Purpose, acts: Acts, now_ns: int
    ) -> Asked:
        asked = self.flights.ask(flight, replica.name, purpose, now_ns, self.rules.timeout_ns)
        flight.robot.used_ns[replica.name] = now_ns
        replica.counts['requests'] += 1
        replica.asked(now_ns)
        acts.append(partial(self._outside.send, replica.name, flight.raw))
        return asked

    def _plan_hedge(self, asked: Asked, replica: Replica, now_ns: int) -> None:
        # its own where that is known: the slot's holds the waits for second tries, too
        p95_ms = replica.latency.percentile_ms(95)
        if isnan(p95_ms):
            p95_ms = self._tally.slot(replica.slot).latency.percentile_ms(95)
        if self.rules.hedge_factor and replica.is_stateless and not isnan(p95_ms):
            wait_ns = max(int(self.rules.hedge_factor * p95_ms * 1e6), HEDGE_FLOOR_NS)
            self.flights.hedge_at(asked, now_ns + wait_ns)

    def hedge(self, flight: Flight, acts: Acts, now_ns: int) -> None:
        """Ask one more replica, as often as the budget allows."""
        slot = self.slots[flight.slot]
        is_allowed = may(Path.HEDGE, flight.robot, slot, now_ns) is not Grade.NO
        untried = _untried(flight, usable(flight.robot, slot)) if is_allowed else []
        # a share of 0 is none at all, whatever is left of the budget
        if untried and self.rules.hedge_percent and self._budgets[flight.slot].spend():
            self.hedges += 1
            untried[0].counts['hedges'] += 1
            self._ask(flight, untried[0], Purpose.HEDGE, acts, now_ns)

    def try_others(self, flight: Flight, acts: Acts, now_ns: int) -> None:
        """Send a copy to who wants to be tried again."""
        for slot in self.slots.values():
            health = (slot.health, *(replica.health for replica in slot))
            if not any(each.wants_trial(now_ns) for each in health):
                continue
            names = flight.robot.places.get(slot.name, ())
            replicas = _untried(flight, [slot.replicas[name] for name in names])
            for replica in replicas:
                # one that is well is tried for its slot, any other for itself
                tried = slot.health if replica.is_ready else replica.health
                if replica.is_reachable and tried.wants_trial(now_ns):
                    tried.trial_sent(now_ns, self.rules.timeout_ns)
                    replica.counts['probes'] += 1
                    self._ask(flight, replica, Purpose.TRIAL, acts, now_ns)

    def try_again(
        self, flight: Flight, reason: str, acts: Acts, now_ns: int, *, same_slot: bool = True
    ) -> bool:
        """
        Ask another replica of the slot or, where the episode cannot stay, of the other slot;
        False when nobody is left. Without `same_slot` the slot's answer is known to be the same.
        """
        robot, slot = flight.robot, self.slots[flight.slot]
        same_slot &= may(Path.FAIL_OVER, robot, slot, now_ns) is not Grade.NO
        if same_slot and self.send(flight, acts, now_ns):
            self._drops.add('failed_over')
            return True
        if reason != LEAVES:
            self._note_failure(flight, slot, reason, now_ns)
        may_leave = reason == 'timeout' or must_leave(robot, slot, now_ns)
        if not (may_leave and self._is_welcome_elsewhere(flight, now_ns)):
            return False
        placement = self._places.move(flight, slot.name, now_ns)
        flight.is_new = True
        acts.append(partial(self._outside.decided, robot, flight, placement))
        return self.send(flight, acts, now_ns)

    def _note_failure(self, flight: Flight, slot: Slot, reason: str, now_ns: int) -> None:
        """Nobody in the slot answers this request."""
        robot = flight.robot
        is_first, robot.failed_in = robot.failed_in != slot.name, slot.name
        self._tally.failed(slot.name, reason)
        # the session is opened again; only where that does not help there is something wrong
        if reason == 'no_session' and is_first:
            return
        # another replica may be well, which only has no session of this robot
        others = any(each.is_ready and each.name not in flight.tried for each in slot)
        if reason in OF_THE_REPLICA and others:
            self.blame(flight, slot, now_ns)
        else:
            slot.health.failed(reason, now_ns)

    def blame(self, flight: Flight, slot: Slot, now_ns: int) -> None:
        """
        Hold it against the replicas at which the policy failed that another one is, or may be,
        well. Where it fails at all of them, it is the request or the policy.
        """
        for name in flight.failed_at:
            if name in slot.replicas:
                slot.replicas[name].health.failed('policy_error', now_ns)

    def has_others(self, flight: Flight, now_ns: int) -> bool:
        """Return whether another replica or slot is left to be asked."""
        slot = self.slots[flight.slot]
        here = may(Path.FAIL_OVER, flight.robot, slot, now_ns) is not Grade.NO
        if here and _untried(flight, usable(flight.robot, slot)):
            return True
        return self._is_welcome_elsewhere(flight, now_ns)

    def _is_welcome_elsewhere(self, flight: Flight, now_ns: int) -> bool:
        """Return whether the episode may leave for a slot that was not asked yet."""
        robot = flight.robot
        others = [slot for slot in self.slots.values() if slot.name != flight.slot]
        return bool(flight.episode_id) and any(
            may(Path.MOVE_IN, robot, slot, now_ns) is Grade.YES
            and _untried(flight, usable(robot, slot))
            for slot in others
        )

    def give_up(self, flight: Flight, acts: Acts) -> None:
        """Answer the robot at once that no replica can: with a new session one may."""
        slot = self.slots[flight.slot]
        text = f'slot {slot.name} cannot answer: {slot.text or "no replica has this session"}'
        self._drops.add('unanswered')
        acts.append(partial(self._outside.fail, flight, Status.NO_SESSION, text))
        flight.end()

    def refuse(self, flight: Flight, nowhere: NoSlot, acts: Acts) -> None:
        """Answer the robot at once that no slot may: its own ladder takes over."""
        status = Status.NO_SESSION if nowhere.is_gone else Status.NO_SLOT
        self._drops.add('unanswered' if nowhere.is_gone else 'no_slot')
        acts.append(partial(self._outside.fail, flight, status, str(nowhere)))
        flight.end()


def _untried(flight: Flight, replicas: list[Replica]) -> list[Replica]:
    return [replica for replica in replicas if replica.name not in flight.tried]


def carry_out(acts: Acts) -> None:
    for act in acts:
        act()
