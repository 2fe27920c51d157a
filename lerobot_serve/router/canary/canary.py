# SPDX-License-Identifier: Apache-2.0
"""
Decide the candidate's share of new episodes from the facts of both slots.

The canary promotes step by step, holds when undecided or without data, and rolls back at once when
a guard trips or the candidate is shown to be worse, also after the promotion, as long as it is
watched. Each decision has a reason. Reads no clock.
Owned by the executor thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lerobot_serve.contract.fingerprint import weights_of
from lerobot_serve.router.canary import status_text
from lerobot_serve.router.canary.facts import ARMS, Facts, not_ready_reason, TEXT_LIMIT
from lerobot_serve.router.canary.guards.rules import (
    missing_data,
    promotion_blocker,
    rollback_reason,
    update_alarms,
)
from lerobot_serve.router.canary.plan import CanaryPlan, other_policy_text
from lerobot_serve.router.canary.record import (
    CanaryEvent,
    CanaryRecord,
    LOG10_E,
    new_trial,
    saved_record,
)
from lerobot_serve.router.canary.states import CanaryPhase, CanaryTrigger, ON_TRIAL, TRANSITIONS
from lerobot_serve.router.canary.watch import (
    is_complete,
    watch_action,
    WatchAction,
    WatchFinding,
    without_earlier_halts,
)
from lerobot_serve.router.parameters import RouterParameters

# largest time between two updates that counts as time at the step
MAX_UPDATE_GAP_NS = 60 * 10**9


class CanaryCommandRejected(ValueError):
    """A command that is not possible now; the text has the reason and the remedy."""


class Canary:
    """
    See the module. `rules` are the parameters with the error bounds and the limits of the guards
    and of the watch; attributes are read-only.
    """

    def __init__(self, plan: CanaryPlan | None, rules: RouterParameters | None = None) -> None:
        self.plan, self.rules = plan, rules or RouterParameters()
        self.record = CanaryRecord(trial=new_trial(self.rules))
        self._new: list[CanaryEvent] = []
        self._updated_ns: int | None = None
        self._reset_observations()
        self.text = 'no canary: canary.plan is empty'
        if plan:
            text = f'plan {plan.text}; {self.rules.terms_text}'
            self._transition(CanaryTrigger.START, 'began', text)

    @property
    def state(self) -> CanaryPhase:
        return self.record.state

    @property
    def is_over(self) -> bool:
        """Whether the canary has ended; the operator sets the split then."""
        return self.state in (CanaryPhase.OFF, CanaryPhase.PROMOTED, CanaryPhase.ROLLED_BACK)

    @property
    def is_watching(self) -> bool:
        """Whether the candidate is promoted and may still be rolled back by itself."""
        return self.state is CanaryPhase.PROMOTED and self.record.watch.is_on

    @property
    def step(self) -> int:
        """The current step, from 0; the last step has 100 %."""
        return self.record.step

    @property
    def share_percent(self) -> int | None:
        """The candidate's share of new episodes; None without a plan."""
        if self.state is CanaryPhase.OFF:
            return None
        if self.state in (CanaryPhase.WAITING, CanaryPhase.ROLLED_BACK):
            return 0
        return self._active_plan.steps[self.step].share_percent

    @property
    def _active_plan(self) -> CanaryPlan:
        """The plan; the canary is not OFF."""
        assert self.plan is not None
        return self.plan

    @property
    def history(self) -> tuple[CanaryEvent, ...]:
        """The latest events, oldest first."""
        return tuple(self.record.history)

    def update(self, now_ns: int, facts: Facts) -> tuple[CanaryEvent, ...]:
        """Evaluate new facts and decide; return the events of this update."""
        self._new = []
        if self.state is CanaryPhase.OFF:
            return ()
        self.count(now_ns, facts)
        self._check_policies(facts)
        if self.state is CanaryPhase.WAITING:
            self._wait(facts)
        elif self.state in ON_TRIAL:
            self._evaluate(self.step_facts(facts))
        elif self.is_watching:
            self._watch(without_earlier_halts(self.step_facts(facts)))
        return tuple(self._new)

    def observe(self, facts: Facts) -> None:
        """Look at facts without counting: whether an operator may promote depends on them."""
        self._was_healthy |= facts.candidate.healthy
        self._update_blocker(facts)

    def step_facts(self, facts: Facts) -> Facts:
        """Return the facts with the counts since the step began."""
        return self.record.growth.since_begin(facts, self.record.trial.totals)

    @property
    def open_episodes(self) -> dict[str, str]:
        """Episodes of this step without an outcome yet, with their arm."""
        return self.record.trial.open

    def change_plan(
        self, plan: CanaryPlan | None, rules: RouterParameters, *, by: str = ''
    ) -> None:
        """
        Set plan and rules; if plan or error bounds changed, restart the canary with all counts at
        0. A changed plan is for the first candidate that is seen; `by` is who changed it.
        """
        is_new, has_other_terms = plan != self.plan, rules.terms != self.rules.terms
        self.plan, self.rules = plan, rules
        if not (is_new or has_other_terms):
            return
        if plan is None:
            if self.state is not CanaryPhase.OFF:
                why = status_text.authored('the plan was removed', by)
                self._transition(CanaryTrigger.STOP, 'stopped', why)
            return
        if is_new:
            self.record.planned_policy = ''
        self._start(status_text.authored(f'new plan: {plan.text}; {rules.terms_text}', by))

    def start_for(self, candidate: str, *, by: str) -> None:
        """Start the plan for a candidate; its counts are 0."""
        self.record.planned_policy = candidate
        self._start(status_text.authored(f'plan for {candidate}: {self._active_plan.text}', by))

    def _start(self, why: str) -> None:
        event = CanaryTrigger.START if self.state is CanaryPhase.OFF else CanaryTrigger.RESTART
        self._restart(event, why)

    # commands of an operator; each returns the status text and raises CanaryCommandRejected

    def pause(self, reason: str) -> str:
        """Keep the share; guards still roll back."""
        return self._operator_command(CanaryTrigger.PAUSE, 'paused', reason)

    def resume(self, reason: str) -> str:
        """Resume a paused canary, or restart one that was rolled back."""
        if self.state is CanaryPhase.ROLLED_BACK:
            self._check_allowed(CanaryTrigger.RESUME, 'resume')
            self._restart(CanaryTrigger.RESUME, status_text.by_operator(reason))
            return self.text
        return self._operator_command(CanaryTrigger.RESUME, 'resumed', reason)

    def rollback(self, reason: str) -> str:
        """Roll the candidate back."""
        return self._operator_command(CanaryTrigger.ROLL_BACK, 'rolled_back', reason)

    def promote(self, reason: str) -> str:
        """Advance to the next step without waiting for the comparison."""
        self._check_allowed(CanaryTrigger.FINISH, 'promote')
        if self._promotion_blocker:
            raise CanaryCommandRejected(f'not promoted: {self._promotion_blocker}')
        self._advance(status_text.by_operator(reason))
        return self.text

    def _operator_command(self, event: CanaryTrigger, what: str, reason: str) -> str:
        self._check_allowed(event, event.name.lower().replace('_', ' '))
        self._transition(event, what, status_text.by_operator(reason))
        return self.text

    def _check_allowed(self, event: CanaryTrigger, what: str) -> None:
        if (self.state, event) not in TRANSITIONS:
            raise CanaryCommandRejected(
                f'cannot {what} a canary that is {self.state.word.replace("_", " ")}: {self.text}'
            )

    # state across restarts

    def snapshot(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return self.record.snapshot(self.plan.text if self.plan else '', self.rules.terms_text)

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """
        Restore the state of a canary with the same plan; return why it is discarded, empty
        otherwise.
        """
        if self.plan is None or not snapshot.get('plan'):
            return ''
        try:
            record = saved_record(snapshot, self.plan, self.rules)
        except ValueError as error:
            return f'saved canary state discarded: {error}'
        self.record, self._updated_ns = record, None
        self._reset_observations()
        self._set_text(record.why)
        return ''

    # update

    def count(self, now_ns: int, facts: Facts) -> None:
        """Count new facts without a decision."""
        record, before_ns = self.record, self._updated_ns
        self._updated_ns = now_ns
        gap_ns = 0 if before_ns is None else min(max(0, now_ns - before_ns), MAX_UPDATE_GAP_NS)
        self._was_healthy |= facts.candidate.healthy
        if self.state not in ON_TRIAL and not self.is_watching:
            record.growth.skip(facts)
            return
        record.time_ns += gap_ns if self.state is not CanaryPhase.PAUSED else 0
        record.trial.take(facts.events)
        update_alarms(record.alarms, record.growth.add(facts), self.rules)

    def _check_policies(self, facts: Facts) -> None:
        candidate, champion = facts.candidate.policy, facts.champion.policy
        is_candidate = champion and weights_of(candidate) != weights_of(champion)
        # a plan that came with the start of the router is for the first candidate
        if is_candidate and not self.record.planned_policy:
            self.record.planned_policy = candidate
        for slot in ARMS:
            before, now = self.record.policies[slot], getattr(facts, slot).policy
            if not now or now == before:
                continue
            self.record.policies[slot] = now
            # after the end of a canary a new champion does not restart it
            is_relevant = slot == 'candidate' or self.state in (CanaryPhase.WAITING, *ON_TRIAL)
            if before and is_relevant:
                self._restart(CanaryTrigger.RESTART, f'the {slot} is now {now}; it was {before}')

    def _wait(self, facts: Facts) -> None:
        reason = self._update_blocker(facts)
        if reason:
            self._set_text(reason)
            return
        self._transition(
            CanaryTrigger.READY, 'started', status_text.step_text(self._active_plan, 0)
        )

    def _evaluate(self, facts: Facts) -> None:
        record, trials = self.record, len(self._active_plan.trials)
        if record.comparison.update(record.trial, self.rules):
            text = status_text.passed_text(facts, self.rules)
            self._append_event('passed', text, self._evidence_figures(facts))
        guard = self._unhealthy_reason(facts) or rollback_reason(facts, record.alarms, self.rules)
        if guard:
            self._transition(CanaryTrigger.ROLL_BACK, 'rolled_back', guard)
        elif record.comparison.worse >= self.rules.rollback_level(trials):
            self._transition(
                CanaryTrigger.ROLL_BACK, 'rolled_back', status_text.worse_text(facts, self.rules)
            )
        elif self.state is CanaryPhase.PAUSED:
            self._update_blocker(facts)
            self.text = f'paused: {record.why}; {self._progress(facts)}'
        else:
            self._hold_or_promote(facts)

    def _unhealthy_reason(self, facts: Facts) -> str:
        # after a restart of the router the slots are unknown at first
        if facts.candidate.healthy or not self._was_healthy:
            return ''
        return not_ready_reason('candidate', facts.candidate)

    def _update_blocker(self, facts: Facts) -> str:
        """
        Update the promotion blocker and return why the share cannot rise now. The blocker also
        holds for a promotion by an operator; an unready champion does not.
        """
        other = other_policy_text(self.record.planned_policy, facts.candidate.policy)
        self._promotion_blocker = other or promotion_blocker(facts)
        return self._promotion_blocker or not_ready_reason('champion', facts.champion)

    def _hold_or_promote(self, facts: Facts) -> None:
        reason = self._update_blocker(facts)
        if not reason and not self._step_is_over(facts):
            self._keep_share(CanaryPhase.RUNNING, self._progress(facts))
            return
        reason = reason or self._undecided_reason(facts) or missing_data(facts, self.rules)
        if reason:
            reason = status_text.with_halts(reason, facts, self.rules)
            self._keep_share(CanaryPhase.UNDECIDED, reason)
        else:
            self._advance(status_text.rates_text(facts))

    def _undecided_reason(self, facts: Facts) -> str:
        comparison, trial = self.record.comparison, self.record.trial
        if comparison.aborted >= self.rules.promotion_level:
            return status_text.aborts_text(facts)
        if comparison.passed:
            return ''
        return status_text.undecided_text(self._active_plan, self.step, facts, self.rules, trial)

    def _keep_share(self, state: CanaryPhase, why: str) -> None:
        if state is not self.state:
            self._transition(
                CanaryTrigger.HOLD if state is CanaryPhase.UNDECIDED else CanaryTrigger.CONTINUE,
                state.word,
                why,
            )
        self._set_text(why)

    def _watch(self, facts: Facts) -> None:
        """Decide after the promotion; see watch.py."""
        record = self.record
        finding, reason = self._finding(facts)
        is_over = is_complete(facts.candidate.arm, record.time_ns, self.rules)
        champion = record.watch.champion_state(facts.champion)
        action = watch_action(champion, finding, is_complete=is_over)
        if action is WatchAction.ROLL_BACK:
            self._transition(CanaryTrigger.ROLL_BACK, 'rolled_back', reason)
        elif action is WatchAction.KEEP:
            # what a guard measures falls again; what it found stays
            record.watch.tripped = reason if finding is WatchFinding.GUARD else ''
            self._set_text(status_text.no_way_back_text(reason, record.watch, facts.champion))
        elif action is WatchAction.WATCH:
            self._set_text(f'all new episodes to the candidate; {self._watch_text(facts)}')
        else:
            record.watch.is_over = True
            self._set_text(f'nothing is worse: {self._watch_text(facts)}')
            self._append_event('watched', record.why)

    def _finding(self, facts: Facts) -> tuple[WatchFinding, str]:
        """Return what is found about a promoted candidate, with the reason."""
        record, comparison = self.record, self.record.comparison
        evidence = record.watch.evidence(facts.candidate.arm, facts.champion.arm, self.rules)
        comparison.worse = max(comparison.worse, evidence / record.trial.rollback_factor)
        guard = record.watch.tripped or rollback_reason(facts, record.alarms, self.rules)
        if guard:
            return WatchFinding.GUARD, guard
        if comparison.worse >= self.rules.rollback_level(1):
            return WatchFinding.WORSE, status_text.worse_since_text(
                record.watch, facts, self.rules
            )
        return WatchFinding.NONE, ''

    def _watch_text(self, facts: Facts) -> str:
        record = self.record
        text = status_text.watch_text(record.watch, facts, record.time_ns, self.rules)
        return status_text.with_halts(text, facts, self.rules)

    def _step_is_over(self, facts: Facts) -> bool:
        least = self._active_plan.steps[self.step]
        enough = facts.candidate.reported >= least.minimum_episodes
        in_time = self.record.time_ns >= least.minimum_s * 1e9
        return enough and in_time

    def _progress(self, facts: Facts) -> str:
        progress = status_text.progress_text(
            self._active_plan, self.step, facts, self.record.time_ns / 1e9
        )
        return status_text.with_halts(progress, facts, self.rules)

    # transitions

    def _advance(self, why: str) -> None:
        plan, step = self._active_plan, self.step + 1
        last = step == len(plan.trials)
        if last:
            self.record.begin_watch(step, self.rules)
        else:
            self.record.next_step(step, self.rules)
        to = (
            'all new episodes to the candidate'
            if last
            else status_text.step_text(self._active_plan, step)
        )
        self._transition(
            CanaryTrigger.FINISH if last else CanaryTrigger.ADVANCE, 'promoted', f'{to}; {why}'
        )

    def _restart(self, event: CanaryTrigger, why: str) -> None:
        record = self.record
        record.begin_step(0, self.rules)
        record.comparison.passed = False
        self._reset_observations()
        if event is CanaryTrigger.START:
            # nothing was counted before
            self._transition(event, 'planned', why)
        else:
            self._transition(event, 'restarted', f'counts reset; {why}')

    def _reset_observations(self) -> None:
        # whether the candidate was healthy in this process; the reason that blocks a promotion
        self._was_healthy = False
        self._promotion_blocker = 'no data of the slots yet'

    def _transition(self, event: CanaryTrigger, what: str, why: str) -> None:
        """Change the state by a trigger. Raises KeyError for an impossible trigger."""
        self.record.state = TRANSITIONS[self.state, event]
        self._set_text(why)
        self._append_event(what, why)

    def _set_text(self, why: str) -> None:
        self.record.why = why[:TEXT_LIMIT]
        self.text = f'{self.state.word.replace("_", " ")}: {self.record.why}'

    def _evidence_figures(self, facts: Facts) -> dict[str, float]:
        candidate, champion = facts.candidate.arm, facts.champion.arm
        return {
            'log10_not_worse': self.record.comparison.not_worse * LOG10_E,
            'log10_level': self.rules.promotion_level * LOG10_E,
            'candidate_successes': candidate.success,
            'candidate_failures': candidate.failure,
            'champion_successes': champion.success,
            'champion_failures': champion.failure,
        }

    def _append_event(self, what: str, why: str, figures: dict[str, float] | None = None) -> None:
        event = CanaryEvent(what, why[:TEXT_LIMIT], figures, self.record.planned_policy)
        self.record.history.append(event)
        self._new.append(event)
