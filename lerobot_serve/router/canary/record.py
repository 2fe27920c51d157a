# SPDX-License-Identifier: Apache-2.0
"""The state of a canary as data that survives a restart."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lerobot_serve.router.canary.alarms import ShareAlarms
from lerobot_serve.router.canary.comparison import StepComparison
from lerobot_serve.router.canary.facts import CounterGrowth, SLOTS
from lerobot_serve.router.canary.guards import new_alarms
from lerobot_serve.router.canary.plan import Terms
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.router.canary.trial import StepTrial

HISTORY_LIMIT = 64
TEXT_LIMIT = 1024
NUMBER_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class CanaryEvent:
    """What happened to a canary (one word) and why."""

    what: str
    why: str


@dataclass(slots=True)
class CanaryRecord:
    """Everything but plan, terms and limits. Owned by the executor thread."""

    state: CanaryPhase = CanaryPhase.OFF
    step: int = 0
    # time that counts for the minimum of the step
    time_ns: int = 0
    trial: StepTrial = field(default_factory=lambda: new_trial(Terms()))
    alarms: ShareAlarms = field(default_factory=new_alarms)
    comparison: StepComparison = field(default_factory=StepComparison)
    growth: CounterGrowth = field(default_factory=CounterGrowth)
    policies: dict[str, str] = field(default_factory=lambda: dict.fromkeys(SLOTS, ''))
    # why the state is what it is
    why: str = ''
    history: deque[CanaryEvent] = field(default_factory=lambda: deque(maxlen=HISTORY_LIMIT))

    def begin_step(self, step: int, terms: Terms) -> None:
        """Count from 0."""
        self.step, self.time_ns = step, 0
        self.trial, self.alarms = new_trial(terms), new_alarms()
        self.comparison.next_step()
        self.growth.restart()

    def as_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return {
            'state': self.state.value,
            'step': self.step,
            'time_ns': self.time_ns,
            'passed': self.comparison.passed,
            'not_worse': self.comparison.not_worse,
            'worse': self.comparison.worse,
            'aborted': self.comparison.aborted,
            'trial': self.trial.memory(),
            'alarms': self.alarms.memory(),
            'counts': self.growth.memory(),
            'policies': dict(self.policies),
            'why': self.why,
            'history': [[entry.what, entry.why] for entry in self.history],
        }


def new_trial(terms: Terms) -> StepTrial:
    """Return a step without episodes."""
    return StepTrial(terms.margin, terms.block_episodes)


def from_json(values: Mapping[str, Any], trials: int, terms: Terms) -> CanaryRecord:
    """
    Return the record of a plan with so many steps below 100 %. Raises ValueError, KeyError or
    TypeError when it is none.
    """
    state = CanaryPhase(values['state'])
    step = _number(values, 'step')
    if step not in _steps(state, trials):
        raise ValueError(f'{state.value} at step {step} of {trials}')
    if state in ON_TRIAL and not all(values['policies'][slot] for slot in SLOTS):
        raise ValueError('on trial without policies')
    record = CanaryRecord(
        state=state,
        step=step,
        time_ns=_number(values, 'time_ns'),
        trial=new_trial(terms),
        comparison=StepComparison(
            _flag(values, 'passed'),
            _number(values, 'not_worse', float),
            _number(values, 'worse', float),
            _number(values, 'aborted', float),
        ),
        policies={slot: _text(values['policies'][slot]) for slot in SLOTS},
        why=_text(values['why']),
    )
    record.growth.restore(values['counts'])
    record.trial.restore(values['trial'])
    record.alarms.restore(values['alarms'])
    record.history.extend(CanaryEvent(_text(what), _text(why)) for what, why in values['history'])
    return record


def _steps(state: CanaryPhase, trials: int) -> range:
    """Return at which steps a canary can be in a state."""
    if state in ON_TRIAL:
        return range(trials)
    if state is CanaryPhase.PROMOTED:
        return range(trials, trials + 1)
    if state is CanaryPhase.ROLLED_BACK:
        return range(trials + 1)
    return range(1) if state is CanaryPhase.WAITING else range(0)


def _number(values: Mapping[str, Any], name: str, kind: type = int) -> Any:
    value = values[name]
    if type(value) is not kind or not 0 <= value <= NUMBER_LIMIT:
        raise ValueError(f'{name} is {value!r}')
    return value


def _flag(values: Mapping[str, Any], name: str) -> bool:
    value = values[name]
    if type(value) is not bool:
        raise ValueError(f'{name} is {value!r}')
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f'{value!r} is no text')
    return value
