# SPDX-License-Identifier: Apache-2.0
"""The state of a canary as data that survives a restart. Owned by the executor thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
import json
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, UNSET, UnsetType

from lerobot_serve.files.load import load
from lerobot_serve.router.canary.evidence.trial import StepTrial, StoredTrial
from lerobot_serve.router.canary.facts import (
    added,
    arm_values,
    ArmGrowth,
    ARMS,
    CounterGrowth,
    OfArms,
    stored_counts,
    StoredArm,
    without_open,
)
from lerobot_serve.router.canary.guards.alarms import ShareAlarms, StoredAlarm
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.router.canary.watch import WatchRecord
from lerobot_serve.router.parameters import RouterParameters

HISTORY_LIMIT = 64
LOG10_E = 0.4342944819032518
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Evidence = Annotated[float, Meta(ge=0, le=2**63)]


@dataclass(frozen=True, slots=True)
class CanaryEvent:
    """
    An event of a canary: its name and reason, what a comparison passed with (the evidence and the
    level that it reached, as decimal logarithms, and the outcomes of the episodes of this step),
    and the policy of the plan.
    """

    what: str
    why: str
    # for the trace; the history that is saved is without
    figures: dict[str, float] | None = field(default=None, compare=False)
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

    def update(self, trial: StepTrial, rules: RouterParameters) -> bool:
        """Update the evidence; return True when the candidate passes for the first time."""
        not_worse, worse, aborted = trial.evidence
        self.not_worse, self.worse = max(self.not_worse, not_worse), max(self.worse, worse)
        self.aborted = max(self.aborted, aborted)
        passed, self.passed = self.passed, self.passed or self.not_worse >= rules.promotion_level
        return self.passed and not passed

    def next_step(self) -> None:
        """Reset the evidence; `passed` remains."""
        self.not_worse = self.worse = self.aborted = 0.0


@dataclass(slots=True)
class CanaryRecord:
    """The state of a canary without its plan and the parameters. Owned by the executor thread."""

    trial: StepTrial
    state: CanaryPhase = CanaryPhase.OFF
    step: int = 0
    # time that counts for the minimum of the step
    time_ns: int = 0
    alarms: ShareAlarms = field(default_factory=ShareAlarms)
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

    def begin_step(self, step: int, rules: RouterParameters) -> None:
        """Begin a step with all counts at 0."""
        self.step, self.time_ns = step, 0
        self.trial, self.alarms = new_trial(rules), ShareAlarms()
        self.comparison.next_step()
        self.growth.restart()
        self.watch = WatchRecord()

    def next_step(self, step: int, rules: RouterParameters) -> None:
        """Begin the next step of the plan; the champion's episodes stay known for the watch."""
        earlier = added(self.watch.earlier, self.trial.totals['champion'])
        self.begin_step(step, rules)
        self.watch.earlier = earlier

    def begin_watch(self, step: int, rules: RouterParameters) -> None:
        """
        Begin the step of 100 %. The candidate's counts are 0; the champion's stay, so that guards
        compare with what it did in the last step.
        """
        champion, alarms = without_open(self.trial.totals['champion']), ShareAlarms()
        alarms.baselines = self.alarms.baselines
        runs = self.trial.runs['champion']
        self.step, self.time_ns = step, 0
        self.trial, self.alarms = new_trial(rules), alarms
        self.trial.totals['champion'], self.trial.runs['champion'] = champion, runs
        self.comparison.next_step()
        self.growth.restart(['candidate'])
        self.watch.champion, self.watch.is_over = self.policies['champion'], False

    def snapshot(self, plan: str, terms: str) -> dict[str, Any]:
        """Return what is stored of the canary of a plan, as plain data."""
        watch = self.watch
        stored = StoredRollout(
            **asdict(self.comparison),
            plan=plan,
            terms=terms,
            state=self.state.word,
            step=self.step,
            time_ns=self.time_ns,
            trial=self.trial.stored(),
            alarms=self.alarms.stored(),
            counts=self.growth.arms,
            policies=self.policies,
            planned_policy=self.planned_policy,
            watch=StoredWatch(
                watch.champion, watch.is_over, arm_values(watch.earlier), watch.tripped
            ),
            why=self.why,
            history=[(entry.what, entry.why) for entry in self.history],
        )
        # with lists for tuples, equal to what is read back
        plain: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(stored)))
        return plain


class StoredWatch(Struct, frozen=True):
    """What is stored of a WatchRecord."""

    champion: str
    is_over: bool
    earlier: StoredArm
    tripped: str = ''


class StoredRollout(Struct, frozen=True, kw_only=True):
    """What is stored of a canary and its plan; `history` has what and why of each event."""

    plan: str
    terms: str
    state: str
    step: Number
    time_ns: Number
    passed: bool
    not_worse: Evidence
    worse: Evidence
    aborted: Evidence
    trial: StoredTrial
    alarms: dict[str, StoredAlarm]
    counts: OfArms[ArmGrowth]
    policies: OfArms[str]
    why: str
    history: list[tuple[str, str]]
    # an older router has stored neither: its candidate is the one of its plan
    planned_policy: str | UnsetType = UNSET
    watch: StoredWatch = StoredWatch('', False, (0,) * 6)


def new_trial(rules: RouterParameters) -> StepTrial:
    """Return the trial of a step without episodes."""
    return StepTrial(rules.canary_margin, rules.canary_block_episodes)


def saved_record(
    snapshot: Mapping[str, Any], plan: CanaryPlan, rules: RouterParameters
) -> CanaryRecord:
    """Return the record of a snapshot of a canary. Raises ValueError, also for another plan."""
    if (snapshot['plan'], snapshot.get('terms')) != (plan.text, rules.terms_text):
        raise ValueError(f'different plan ({snapshot["plan"]})')
    try:
        return _record(load(StoredRollout, snapshot, 'rollout'), len(plan.trials), rules)
    except (ValueError, KeyError) as error:
        raise ValueError(f'invalid ({error!r})') from error


def _record(stored: StoredRollout, trials: int, rules: RouterParameters) -> CanaryRecord:
    """
    Return the record of a plan with `trials` steps below 100 %. Raises ValueError and KeyError.
    """
    state, policies, watch = CanaryPhase.named(stored.state), stored.policies, stored.watch
    if stored.step not in _steps(state, trials):
        raise ValueError(f'{state.word} at step {stored.step} of {trials}')
    if state in ON_TRIAL and not all(policies.values()):
        raise ValueError('on trial without policies')
    planned, earlier = stored.planned_policy, stored_counts(watch.earlier)
    record = CanaryRecord(
        state=state,
        step=stored.step,
        time_ns=stored.time_ns,
        trial=new_trial(rules),
        comparison=StepComparison(stored.passed, stored.not_worse, stored.worse, stored.aborted),
        policies=policies,
        planned_policy=planned if isinstance(planned, str) else policies['candidate'],
        watch=WatchRecord(watch.champion, watch.is_over, earlier, watch.tripped),
        why=stored.why,
    )
    record.growth.arms = stored.counts
    record.trial.restore(stored.trial)
    record.alarms.restore(stored.alarms)
    record.history.extend(CanaryEvent(what, why) for what, why in stored.history)
    return record


def _steps(state: CanaryPhase, trials: int) -> range:
    """Return the possible steps of a canary in a state."""
    if state in ON_TRIAL:
        return range(trials)
    if state is CanaryPhase.PROMOTED:
        return range(trials, trials + 1)
    if state is CanaryPhase.ROLLED_BACK:
        return range(trials + 1)
    return range(1) if state is CanaryPhase.WAITING else range(0)
