# SPDX-License-Identifier: Apache-2.0
"""
Run the canary of a router: read the facts of the slots, set split and verdicts. Executor thread.

Slot b holds the candidate, slot a the champion. The canary sets the split while it runs, the
operator before and after. State, verdict and split are stored in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builtin_interfaces.msg import Time
from msgspec.structs import asdict

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.canary import Canary, CanaryCommandRejected
from lerobot_serve.router.canary.evidence.forecast import episodes_to_decide
from lerobot_serve.router.canary.facts import (
    BEGUN,
    CANDIDATE,
    CHAMPION,
    EpisodeEvent,
    Facts,
    SLOT_OF_ARM,
    SlotFacts,
)
from lerobot_serve.router.canary.guards.values import guard_values
from lerobot_serve.router.canary.record import CanaryEvent, LOG10_E
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import SlotCounters
from lerobot_serve.router.shadow.qualification import ShadowRecord
from lerobot_serve.router.storage.decisions import DurableDecisions, LIFT_HINT
from lerobot_serve.router.storage.records import COUNTED
from lerobot_serve_interfaces.msg import CanaryState, GuardState

# events logged as info instead of warnings
ROUTINE_EVENTS = ('began', 'started', 'passed', 'promoted', 'watched')
# a killed process loses at most the counts of replies and commands of this time, of both policies
# alike; episodes that began or ended since are counted again from the store
SAVE_PERIOD_NS = 5 * 10**9


class CanaryController:
    """
    See the module. `slot` is the candidate's, None in a router with one slot. `set_split` sets the
    parameter split_percent; `on_event` receives each event with the candidate's share.
    """

    def __init__(
        self,
        parameters: RouterParameters,
        slot: Slot | None,
        decisions: DurableDecisions,
        context: NodeContext,
        *,
        set_split: Callable[[int], None],
        on_event: Callable[[CanaryEvent, int | None], None],
    ) -> None:
        self.canary = Canary(parameters.plan, parameters)
        self._slot, self._decisions, self._context = slot, decisions, context
        self._set_split, self._on_event = set_split, on_event
        self._rollback_now = parameters.move_episodes_on_rollback
        self._share: int | None = None
        # whether the split was the operator's at the last look
        self._was_over = True
        self._saved_ns: int | None = None
        self._pending: tuple[CanaryEvent, ...] = ()
        # restarts of the counts of each arm at the last look
        self._restarts: dict[str, int] = {}
        # of the last update
        self._facts = Facts(SlotFacts(), SlotFacts())
        # up to which begin or end of an episode the counts go, and more; stored with them
        self.counted: dict[str, Any] = {}
        self.adopt()

    def adopt(self) -> None:
        """Restore the stored canary: at the start, and where another router has changed it."""
        snapshot, self._pending = self._decisions.canary_snapshot, ()
        problem = self.canary.restore(snapshot) if snapshot else ''
        if problem:
            self._context.log_warning(problem)
        # the operator may have set the split since a canary ended
        self._share = self.canary.share_percent if self.canary.is_over else None
        self._was_over = self.canary.is_over
        found = (snapshot or {}).get(COUNTED)
        self.counted = found if isinstance(found, dict) else {}
        self._update_slot()

    def _update_slot(self) -> None:
        if self._slot:
            self._slot.is_on_trial = self.canary.state in ON_TRIAL

    def facts(self, table: RoutingTable, in_shadow: ShadowRecord) -> Facts:
        """
        Return the facts of both slots since the step began; `in_shadow` is the candidate's. Under
        the lock.
        """
        self._restart_latency(table)
        candidate, champion = (
            slot_facts(table.slots[name], table.stats.slot(name)) for name in (CANDIDATE, CHAMPION)
        )
        return Facts(
            candidate,
            champion,
            divergence=in_shadow.spreads_mean,
            divergence_samples=in_shadow.spreads_count,
            events=table.stats.take_events(),
        )

    def _restart_latency(self, table: RoutingTable) -> None:
        """
        Measure the latency of the slots again where a step has begun since the last look, as each
        router of a shared state does. In a watch the champion's stays, as its shares do.
        """
        restarts = self.canary.record.growth.restarts
        for arm, slot in SLOT_OF_ARM.items():
            if restarts[arm] != self._restarts.get(arm):
                table.stats.restart_latency(slot)
        self._restarts = dict(restarts)

    def update(self, now_ns: int, facts: Facts) -> bool:
        """Update the canary and apply its events; return whether there were any."""
        self._facts = facts
        events = (*self._pending, *self.canary.update(now_ns, facts))
        self._pending = ()
        self._apply(now_ns, events, at_once=self._rollback_now)
        return bool(events)

    def follow(self, now_ns: int, facts: Facts) -> bool:
        """
        Look at the own facts while another router of a shared state runs the rollout; store what
        an operator changed here.
        """
        self._facts = facts
        self.canary.observe(facts)
        return self.settle(now_ns)

    def count(self, now_ns: int, facts: Facts) -> None:
        """
        Count and store what happened since the last update, without a decision: at the end of a
        router its servers may be ending, too.
        """
        self.canary.count(now_ns, facts)
        self._saved_ns = None
        self._save(now_ns, is_decision=False)

    def settle(self, now_ns: int) -> bool:
        """Store what an operator has changed here, without waiting for the next update."""
        events, self._pending = self._pending, ()
        if events:
            self._apply(now_ns, events, at_once=self._rollback_now)
        return bool(events)

    def drop_pending(self) -> None:
        """Forget events that another router has stored."""
        self._pending = ()

    def _apply(self, now_ns: int, events: tuple[CanaryEvent, ...], *, at_once: bool) -> None:
        # an operator's split ends with the rollout that it followed, also where the share is equal
        is_taken_back = self._was_over and not self.canary.is_over
        share, before = self.canary.share_percent, self._share
        with self._decisions.canary_transaction():
            # verdicts first: a barred policy receives no episode from now on
            for event in events:
                self._record_verdict(event, at_once=at_once)
            if share is not None and (share != before or is_taken_back):
                self._set_split(100 - share)
            self._share, self._was_over = share, self.canary.is_over
            self._update_slot()
            self._save(now_ns, is_decision=bool(events))
        for event in events:
            is_routine = event.what in ROUTINE_EVENTS
            log = self._context.log_info if is_routine else self._context.log_warning
            log(f'canary {event.what}: {event.why}')
            self._on_event(event, share)

    def _record_verdict(self, event: CanaryEvent, *, at_once: bool) -> None:
        policy = self.canary.record.policies['candidate']
        if event.what == 'rolled_back' and self._slot:
            self._decisions.bar(self._slot, policy, event.why, at_once=at_once)
        elif self.canary.state is CanaryPhase.PROMOTED and event.what == 'promoted':
            self._decisions.promote(policy)

    def _save(self, now_ns: int, *, is_decision: bool) -> None:
        is_due = self._saved_ns is None or now_ns - self._saved_ns >= SAVE_PERIOD_NS
        if not (is_decision or is_due):
            return
        self._saved_ns = now_ns
        snapshot = self.canary.snapshot()
        if self.counted:
            snapshot[COUNTED] = self.counted
        if snapshot != self._decisions.canary_snapshot:
            self._decisions.canary(snapshot, is_decision=is_decision)

    def change_parameters(self, parameters: RouterParameters, *, by: str = '') -> None:
        """Apply new limits; a new plan restarts the canary with the next update."""
        self._rollback_now = parameters.move_episodes_on_rollback
        before = self.canary.history
        self.canary.change_plan(parameters.plan, parameters, by=by)
        if self.canary.history != before:
            self._pending += self.canary.history[-1:]

    def check_start(self) -> None:
        """Raise CanaryCommandRejected when no rollout may start now."""
        record, slot = self.canary.record, self._slot
        if slot is None or not slot.policy:
            raise CanaryCommandRejected('slot b serves no policy yet; start its policy servers')
        state = self.canary.state
        is_waiting = state is CanaryPhase.WAITING and record.planned_policy == slot.policy
        if is_waiting or state in ON_TRIAL or state is CanaryPhase.PROMOTED:
            raise CanaryCommandRejected(
                f'a rollout of {record.policies["candidate"]} has begun ({self.canary.text}); '
                'stop it first, abort it to bar its policy, or finish it'
            )
        if slot.verdict_record.verdict in BARRING_VERDICTS:
            raise CanaryCommandRejected(f'not started: {slot.verdict_record.text}; {LIFT_HINT}')

    def start(self, *, by: str) -> None:
        """Start the plan, which is set, for the policy that slot b serves now."""
        assert self._slot
        if self.canary.record.planned_policy:
            # the plan was there already, for another policy
            self.canary.start_for(self._slot.policy, by=by)
            self._pending += self.canary.history[-1:]
        self.canary.record.planned_policy = self._slot.policy

    def add_event(self, what: str, why: str) -> None:
        """Record an event that changes no state with the next update."""
        self._pending += (CanaryEvent(what, why),)

    def check_split(self, old: int, new: int) -> None:
        """Raise ParameterError for a change of the split while the canary runs."""
        if new != old and not self.canary.is_over:
            raise ParameterError(
                f'split_percent stays {old}: the canary sets it ({self.canary.text}); clear '
                'canary.plan, or promote or roll back (`lerobot-serve rollout`, control_slot)'
            )

    def run_command(self, command: str, reason: str, now_ns: int, *, at_once: bool = False) -> str:
        """
        Run a command of an operator and return the status text. Raises CanaryCommandRejected, and
        NotDurable for a lifted verdict that cannot be stored.
        """
        if self.canary.state is CanaryPhase.OFF:
            raise CanaryCommandRejected(
                'no canary: canary.plan is empty; set the parameter canary.plan'
            )
        if self._decisions.writer.store.is_shared:
            # a verdict is lifted only if the rollout is what this router knows
            with self._decisions.transaction():
                return self._run_command(command, reason, now_ns, at_once=at_once)
        return self._run_command(command, reason, now_ns, at_once=at_once)

    def _run_command(self, command: str, reason: str, now_ns: int, *, at_once: bool) -> str:
        if command == 'resume' and self.canary.state is CanaryPhase.ROLLED_BACK and self._slot:
            self._decisions.lift(self._slot, self.canary.record.policies['candidate'])
        elif (
            command == 'promote'
            and self._slot
            and self._slot.verdict_record.verdict in BARRING_VERDICTS
        ):
            raise CanaryCommandRejected(
                f'not promoted: {self._slot.verdict_record.text}; {LIFT_HINT}'
            )
        text: str = getattr(self.canary, command)(reason)
        at_once = at_once or (command == 'rollback' and self._rollback_now)
        self._apply(now_ns, self.canary.history[-1:], at_once=at_once)
        return text

    def report(self, stamp: Time) -> CanaryState:
        """Return the state of the canary as a message."""
        canary = self.canary
        record, plan = canary.record, canary.plan
        facts = canary.step_facts(self._facts)
        return CanaryState(
            stamp=stamp,
            state=int(canary.state),
            slot=CANDIDATE,
            candidate_policy=record.policies['candidate'],
            # what slot a serves now, also without a plan: a learner builds on it
            champion_policy=self._facts.champion.policy or record.policies['champion'],
            step=canary.step,
            step_count=len(plan.steps) if plan else 0,
            share_percent=canary.share_percent or 0,
            text=encodable_text(canary.text),
            estimated_remaining_episodes=self._remaining_episodes(),
            candidate_successes=facts.candidate.arm.success,
            candidate_failures=facts.candidate.arm.failure,
            champion_successes=facts.champion.arm.success,
            champion_failures=facts.champion.arm.failure,
            log10_evidence_not_worse=record.comparison.not_worse * LOG10_E,
            log10_evidence_worse=record.comparison.worse * LOG10_E,
            step_elapsed_s=record.time_ns / 1e9,
            planned_policy=record.planned_policy,
            guards=self._guards(facts),
            is_watched=canary.is_watching,
        )

    def _guards(self, facts: Facts) -> list[GuardState]:
        """Return what the guards measure; nothing before a trial and after a watch."""
        canary = self.canary
        if canary.state not in ON_TRIAL and not canary.is_watching:
            return []
        values = guard_values(facts, canary.record.alarms, canary.rules)
        return [GuardState(**asdict(value)) for value in values]

    def _remaining_episodes(self) -> int:
        canary, plan = self.canary, self.canary.plan
        is_running = canary.state in (CanaryPhase.RUNNING, CanaryPhase.UNDECIDED)
        if plan is None or not is_running or canary.record.comparison.passed:
            return -1
        forecast = episodes_to_decide(
            canary.record.trial,
            share_percent=plan.steps[canary.step].share_percent,
            rules=canary.rules,
            trials=len(plan.trials),
        )
        return forecast.episodes if forecast else -1

    def open_episodes(self) -> list[EpisodeEvent]:
        """Return the begins of the episodes of this step without an outcome yet."""
        episodes = self.canary.open_episodes.items()
        return [EpisodeEvent(name, BEGUN, arm) for name, arm in episodes]


def slot_facts(slot: Slot, stats: SlotCounters) -> SlotFacts:
    """Return the facts of a slot since the start. Under RoutingTable.lock."""
    return SlotFacts(
        replies=stats.chunks + stats.failed.total(),
        failed_replies=stats.failed.total(),
        commands=stats.commands,
        fallbacks=stats.fallbacks,
        trips=stats.trips,
        halts=stats.halts,
        latency_ms_p95=stats.latency.percentile_ms(95),
        oldest_age_s=stats.oldest_age_s,
        healthy=slot.is_healthy,
        health_text=slot.text,
        policy=slot.policy,
    )
