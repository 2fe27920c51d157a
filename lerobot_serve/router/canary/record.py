# SPDX-License-Identifier: Apache-2.0
"""The state of a canary as data that survives a restart. Owned by the executor thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lerobot_serve.router.canary.evidence.trial import StepTrial
from lerobot_serve.router.canary.facts import added, ARMS, CounterGrowth, without_open
from lerobot_serve.router.canary.guards.alarms import ShareAlarms
from lerobot_serve.router.canary.guards.rules import new_alarms
from lerobot_serve.router.canary.plan import CanaryPlan, Terms
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.router.canary.watch import watch_from_json, WatchRecord
from lerobot_serve.router.storage.checked import (
    checked_flag,
    checked_float,
    checked_int,
    checked_text,
)

HISTORY_LIMIT = 64
LOG10_E = 0.4342944819032518
NUMBER_LIMIT = 2**63
# of StepComparison
EVIDENCE = ('not_worse', 'worse', 'aborted')


@dataclass(frozen=True, slots=True)
class EvidenceFigures:
    """
    What a comparison passed with: the evidence and the level that it reached, as decimal
    logarithms, and the outcomes of the episodes of this step.
    """

    log10_not_worse: float
    log10_level: float
    candidate_successes: int
    candidate_failures: int
    champion_successes: int
    champion_failures: int


@dataclass(frozen=True, slots=True)
class CanaryEvent:
    """
    An event of a canary: its name and reason, the evidence of a passed comparison, and the policy
    of the plan.
    """

    what: str
    why: str
    # for the trace; the history that is saved is without
    figures: EvidenceFigures | None = field(default=None, compare=False)
    policy: str = field(default='', compare=False)


@dataclass(slots=True)
class StepComparison:
    """
    The comparison of one step: the largest log e. `passed` is whether the candidate passed in any.

    Each step compares the episodes that begin in it, so that a candidate that degrades cannot rely
    on earlier steps.
    """

    passed: bool = False
    not_worse: float = 0.0
    worse: float = 0.0
    # evidence that the champion's episodes are aborted more often
    aborted: float = 0.0

    def update(self, trial: StepTrial, terms: Terms) -> bool:
        """Update the evidence; return True when the candidate passes for the first time."""
        not_worse, worse, aborted = trial.evidence
        self.not_worse, self.worse = max(self.not_worse, not_worse), max(self.worse, worse)
        self.aborted = max(self.aborted, aborted)
        passed, self.passed = self.passed, self.passed or self.not_worse >= terms.promotion_level
        return self.passed and not passed

    def is_worse(self, terms: Terms, trials: int) -> bool:
        """Return whether the candidate is shown to be worse than the champion."""
        return self.worse >= terms.rollback_level(trials)

    def aborts_differ(self, terms: Terms) -> bool:
        """Return whether the champion's episodes are shown to be aborted more often."""
        return self.aborted >= terms.promotion_level

    def next_step(self) -> None:
        """Reset the evidence; `passed` remains."""
        self.not_worse = self.worse = self.aborted = 0.0


@dataclass(slots=True)
class CanaryRecord:
    """The state of a canary without plan, terms and limits. Owned by the executor thread."""

    state: CanaryPhase = CanaryPhase.OFF
    step: int = 0
    # time that counts for the minimum of the step
    time_ns: int = 0
    trial: StepTrial = field(default_factory=lambda: new_trial(Terms()))
    alarms: ShareAlarms = field(default_factory=new_alarms)
    comparison: StepComparison = field(default_factory=StepComparison)
    growth: CounterGrowth = field(default_factory=CounterGrowth)
    policies: dict[str, str] = field(default_factory=lambda: dict.fromkeys(ARMS, ''))
    # the policy for which the plan was started; empty: the first candidate that is seen
    planned_policy: str = ''
    # after the promotion
    watch: WatchRecord = field(default_factory=WatchRecord)
    # reason of the state
    why: str = ''
    history: deque[CanaryEvent] = field(default_factory=lambda: deque(maxlen=HISTORY_LIMIT))

    def begin_step(self, step: int, terms: Terms) -> None:
        """Begin a step with all counts at 0."""
        self.step, self.time_ns = step, 0
        self.trial, self.alarms = new_trial(terms), new_alarms()
        self.comparison.next_step()
        self.growth.restart()
        self.watch = WatchRecord()

    def next_step(self, step: int, terms: Terms) -> None:
        """Begin the next step of the plan; the champion's episodes stay known for the watch."""
        earlier = added(self.watch.earlier, self.trial.totals['champion'])
        self.begin_step(step, terms)
        self.watch.earlier = earlier

    def begin_watch(self, step: int, terms: Terms) -> None:
        """
        Begin the step of 100 %. The candidate's counts are 0; the champion's stay, so that guards
        compare with what it did in the last step.
        """
        champion, alarms = without_open(self.trial.totals['champion']), new_alarms()
        alarms.baselines = self.alarms.baselines
        runs = self.trial.runs['champion']
        self.step, self.time_ns = step, 0
        self.trial, self.alarms = new_trial(terms), alarms
        self.trial.totals['champion'], self.trial.runs['champion'] = champion, runs
        self.comparison.next_step()
        self.growth.restart(['candidate'])
        self.watch.champion, self.watch.is_over = self.policies['champion'], False

    def as_json(self) -> dict[str, Any]:
        """Return the record for `from_json`."""
        return {
            'state': self.state.word,
            'step': self.step,
            'time_ns': self.time_ns,
            'passed': self.comparison.passed,
            'not_worse': self.comparison.not_worse,
            'worse': self.comparison.worse,
            'aborted': self.comparison.aborted,
            'trial': self.trial.snapshot(),
            'alarms': self.alarms.snapshot(),
            'counts': self.growth.snapshot(),
            'policies': dict(self.policies),
            'planned_policy': self.planned_policy,
            'watch': self.watch.as_json(),
            'why': self.why,
            'history': [[entry.what, entry.why] for entry in self.history],
        }


def new_trial(terms: Terms) -> StepTrial:
    """Return the trial of a step without episodes."""
    return StepTrial(terms.margin, terms.block_episodes)


def from_json(values: Mapping[str, Any], trials: int, terms: Terms) -> CanaryRecord:
    """
    Return the record of a plan with `trials` steps below 100 %. Raises ValueError, KeyError or
    TypeError for an invalid one.
    """
    state = CanaryPhase.named(values['state'])
    step = checked_int(values['step'], 'step', NUMBER_LIMIT)
    if step not in _steps(state, trials):
        raise ValueError(f'{state.word} at step {step} of {trials}')
    if state in ON_TRIAL and not all(values['policies'][slot] for slot in ARMS):
        raise ValueError('on trial without policies')
    record = CanaryRecord(
        state=state,
        step=step,
        time_ns=checked_int(values['time_ns'], 'time_ns', NUMBER_LIMIT),
        trial=new_trial(terms),
        comparison=StepComparison(
            checked_flag(values['passed'], 'passed'),
            *(checked_float(values[name], name, NUMBER_LIMIT) for name in EVIDENCE),
        ),
        policies={slot: checked_text(values['policies'][slot]) for slot in ARMS},
        # an older snapshot has none: its candidate is the one of its plan
        planned_policy=checked_text(values.get('planned_policy', values['policies']['candidate'])),
        # an older snapshot has none
        watch=watch_from_json(values['watch']) if 'watch' in values else WatchRecord(),
        why=checked_text(values['why']),
    )
    record.growth.restore(values['counts'])
    record.trial.restore(values['trial'])
    record.alarms.restore(values['alarms'])
    record.history.extend(
        CanaryEvent(checked_text(what), checked_text(why)) for what, why in values['history']
    )
    return record


def saved_record(snapshot: Mapping[str, Any], plan: CanaryPlan, terms: Terms) -> CanaryRecord:
    """
    Return the record of a snapshot of a canary with this plan. Raises ValueError, KeyError or
    TypeError, also for another plan.
    """
    if (snapshot['plan'], snapshot['terms']) != (plan.text, terms.text):
        raise ValueError(f'different plan ({snapshot["plan"]})')
    try:
        return from_json(snapshot, len(plan.trials), terms)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'invalid ({error!r})') from error


def _steps(state: CanaryPhase, trials: int) -> range:
    """Return the possible steps of a canary in a state."""
    if state in ON_TRIAL:
        return range(trials)
    if state is CanaryPhase.PROMOTED:
        return range(trials, trials + 1)
    if state is CanaryPhase.ROLLED_BACK:
        return range(trials + 1)
    return range(1) if state is CanaryPhase.WAITING else range(0)
