# SPDX-License-Identifier: Apache-2.0
"""
Run the canary on a router: slot facts in, split and verdicts out. The executor thread.

Slot b is the candidate, slot a the champion. While the canary goes on the split is its own; before
and after it is the operator's. What it decides goes into the store in one transaction: state,
verdict and split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.canary import Canary, CanaryCommandRejected
from lerobot_serve.router.canary.facts import Facts, SlotFacts
from lerobot_serve.router.canary.forecast import episodes_to_decide
from lerobot_serve.router.canary.record import CanaryEvent
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.router.canary.trial import EpisodeEvent
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import EpisodeTransition, SlotCounters
from lerobot_serve.router.storage.decisions import DurableDecisions, LIFT_HINT
from lerobot_serve_interfaces.msg import CanaryState

CANDIDATE, CHAMPION = 'b', 'a'
ARM_OF_SLOT = {CANDIDATE: 'candidate', CHAMPION: 'champion'}
SLOT_OF_ARM = {arm: slot for slot, arm in ARM_OF_SLOT.items()}
PHASE_CODES = {
    CanaryPhase.OFF: CanaryState.OFF,
    CanaryPhase.WAITING: CanaryState.WAITING,
    CanaryPhase.RUNNING: CanaryState.RUNNING,
    CanaryPhase.UNDECIDED: CanaryState.UNDECIDED,
    CanaryPhase.PAUSED: CanaryState.PAUSED,
    CanaryPhase.PROMOTED: CanaryState.PROMOTED,
    CanaryPhase.ROLLED_BACK: CanaryState.ROLLED_BACK,
}
# events that need no attention
ROUTINE_EVENTS = ('began', 'started', 'passed', 'promoted')
LOG10_E = 0.4342944819032518


# what is lost with the process; of the episodes of both policies alike
SAVE_PERIOD_NS = 5 * 10**9


class CanaryController:
    """
    See the module. `slot` is the candidate's, None in a router of one slot. `set_split` changes
    the parameter split_percent, `warn` is for operators, `inform` for what went well.
    """

    def __init__(
        self,
        parameters: RouterParameters,
        slot: Slot | None,
        intent: DurableDecisions,
        *,
        set_split: Callable[[int], None],
        warn: Callable[[str], None],
        inform: Callable[[str], None],
    ) -> None:
        self.canary = Canary(parameters.plan, parameters.terms, parameters.limits)
        self._slot, self._intent = slot, intent
        self._set_split, self._warn, self._inform = set_split, warn, inform
        self._rollback_now = parameters.move_episodes_on_rollback
        self._share: int | None = None
        self._saved_ns: int | None = None
        self._pending: tuple[CanaryEvent, ...] = ()
        self.on_event: Callable[[CanaryEvent, int | None], None] = lambda event, share: None
        self._restore()

    def _restore(self) -> None:
        memory = self._intent.canary_snapshot
        problem = self.canary.restore(memory) if memory else ''
        if problem:
            self._warn(problem)
        if self.canary.is_over:
            # since then the split was the operator's
            self._share = self.canary.share_percent
        self._update_slot()

    def _update_slot(self) -> None:
        if self._slot:
            self._slot.is_on_trial = self.canary.state in ON_TRIAL

    def update(self, now_ns: int, facts: Facts) -> bool:
        """Update the canary and apply its events; return whether there were any."""
        events = (*self._pending, *self.canary.update(now_ns, facts))
        self._pending = ()
        self._apply(now_ns, events, at_once=self._rollback_now)
        return bool(events)

    def _apply(self, now_ns: int, events: tuple[CanaryEvent, ...], *, at_once: bool) -> None:
        share, before = self.canary.share_percent, self._share
        with self._intent.canary_transaction():
            # first of all: what is barred gets no episode from now on
            for event in events:
                self._record_verdict(event, at_once=at_once)
            if share is not None and share != before:
                self._set_split(100 - share)
            self._share = share
            self._update_slot()
            self._save(now_ns, is_decision=bool(events))
        for event in events:
            log = self._inform if event.what in ROUTINE_EVENTS else self._warn
            log(f'canary {event.what}: {event.why}')
            self.on_event(event, share)

    def _record_verdict(self, event: CanaryEvent, *, at_once: bool) -> None:
        policy = self.canary.record.policies['candidate']
        if event.what == 'rolled_back' and self._slot:
            self._intent.bar(self._slot, policy, event.why, at_once=at_once)
        elif self.canary.state is CanaryPhase.PROMOTED and event.what == 'promoted':
            self._intent.promote(policy)

    def _save(self, now_ns: int, *, is_decision: bool) -> None:
        is_due = self._saved_ns is None or now_ns - self._saved_ns >= SAVE_PERIOD_NS
        memory = self.canary.memory() if is_decision or is_due else None
        if memory is None:
            return
        self._saved_ns = now_ns
        if memory != self._intent.canary_snapshot:
            self._intent.canary(memory, is_decision=is_decision)

    def change(self, parameters: RouterParameters) -> None:
        """Take other limits; another plan begins anew, with the next look."""
        self.canary.limits = parameters.limits
        self._rollback_now = parameters.move_episodes_on_rollback
        before = self.canary.history
        self.canary.change_plan(parameters.plan, parameters.terms)
        if self.canary.history != before:
            self._pending += self.canary.history[-1:]

    def check_split(self, old: int, new: int) -> None:
        """Raise ParameterError for a split that is the canary's to choose."""
        if new != old and not self.canary.is_over:
            raise ParameterError(
                f"split_percent stays {old}: it is the canary's ({self.canary.text}); take its "
                'plan away (canary.plan: []), or promote or roll back with control_slot'
            )

    def control(self, word: str, reason: str, now_ns: int, *, at_once: bool = False) -> str:
        """
        Follow an operator's word and return what was done. Raises NotAllowed and, where a policy
        would drive by it that a verdict bars, NotDurable.
        """
        if self.canary.state is CanaryPhase.OFF:
            raise CanaryCommandRejected(
                'no canary: canary.plan is empty; set the parameter canary.plan'
            )
        if word == 'resume' and self.canary.state is CanaryPhase.ROLLED_BACK and self._slot:
            self._intent.lift(self._slot, self.canary.record.policies['candidate'])
        elif word == 'promote' and self._slot and self._slot.bar.verdict in BARRING_VERDICTS:
            raise CanaryCommandRejected(f'not promoted: {self._slot.bar.text}; {LIFT_HINT}')
        text = getattr(self.canary, word)(reason)
        at_once = at_once or (word == 'rollback' and self._rollback_now)
        self._apply(now_ns, self.canary.history[-1:], at_once=at_once)
        return text

    def report(self, stamp: Any) -> CanaryState:
        """Return what operators see."""
        canary = self.canary
        record, plan = canary.record, canary.plan
        facts = canary.seen(Facts(SlotFacts(), SlotFacts()))
        return CanaryState(
            stamp=stamp,
            state=PHASE_CODES[canary.state],
            slot=CANDIDATE,
            candidate_policy=record.policies['candidate'],
            champion_policy=record.policies['champion'],
            step=canary.step,
            step_count=len(plan.steps) if plan else 0,
            share_percent=canary.share_percent or 0,
            text=canary.text[:1024],
            estimated_remaining_episodes=self._remaining_episodes(),
            candidate_successes=facts.candidate.arm.success,
            candidate_failures=facts.candidate.arm.failure,
            champion_successes=facts.champion.arm.success,
            champion_failures=facts.champion.arm.failure,
            log10_evidence_not_worse=record.comparison.not_worse * LOG10_E,
            log10_evidence_worse=record.comparison.worse * LOG10_E,
            step_elapsed_s=record.time_ns / 1e9,
        )

    def _remaining_episodes(self) -> int:
        canary = self.canary
        if (
            canary.state not in (CanaryPhase.RUNNING, CanaryPhase.UNDECIDED)
            or canary.record.comparison.passed
        ):
            return -1
        forecast = episodes_to_decide(
            canary.record.trial,
            share_percent=canary.share_percent,
            terms=canary.terms,
            trials=len(canary.plan.trials),
        )
        return forecast.episodes if forecast else -1

    def open_episodes(self) -> list[tuple[str, str]]:
        """Return episodes of this step whose verdict may still come, with their slot."""
        return [(name, SLOT_OF_ARM[arm]) for name, arm in self.canary.open_episodes.items()]


def arm_events(events: Sequence[EpisodeTransition]) -> tuple[EpisodeEvent, ...]:
    """Return what the stats noted of episodes, by the arm in which they began."""
    return tuple(EpisodeEvent(name, what, ARM_OF_SLOT[slot]) for name, what, slot in events)


def slot_facts(slot: Slot, stats: SlotCounters) -> SlotFacts:
    """Return what was seen of a slot since the start; under the dispatcher's lock."""
    return SlotFacts(
        answers=stats.answers + stats.failed.total(),
        failed_replies=stats.failed.total(),
        commands=stats.commands,
        fallbacks=stats.fallbacks,
        trips=stats.trips,
        latency_ms_p95=stats.latency.percentile_ms(95),
        oldest_age_s=stats.oldest_age_s,
        healthy=slot.is_healthy,
        health_text=slot.text,
        policy=slot.policy,
    )
