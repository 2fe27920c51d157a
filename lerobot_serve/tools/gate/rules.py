# SPDX-License-Identifier: Apache-2.0
"""
The gates and the verdict. Pure functions; the verdict is one table.

A safety gate cannot be overridden, and one that cannot be measured counts as failed. A performance
gate can, by a person with a reason; one that cannot be measured passes, and says so.
"""

from __future__ import annotations

from collections.abc import Collection
import math
from typing import Literal

from msgspec import Struct

from lerobot_serve.router.canary.evidence.success_rate import worse_evidence
from lerobot_serve.router.canary.gate_record import GateVerdict
from lerobot_serve.router.canary.plan import Terms
from lerobot_serve.tools.gate.figures import GateFigures, TaskFigures
from lerobot_serve.tools.gate.limits import GateLimits
from lerobot_serve.tools.gate.motion import velocity_distances

LATENCY_FLOOR_MS = 5.0
MEMORY_FLOOR_BYTES = 100_000_000
# a parent whose chunks the cage changes more often did not drive a robot with these limits
MAX_PARENT_PERCENT = 50.0
# replies of a task below which its similarity is chance
MINIMUM_REPLIES = 20
MAX_FORECAST_EPISODES = 20_000


# a person may override the second ones
SAFETY_GATES = ('finite', 'cage', 'velocity', 'tasks')
PERFORMANCE_GATES = ('success', 'latency', 'memory', 'similarity', 'task_similarity')


class Gate(Struct, frozen=True):
    """One gate. A value of None is not measured; `text` says what would be enough."""

    name: str
    kind: Literal['safety', 'performance']
    state: Literal['passed', 'failed', 'unmeasured']
    value: float | None
    limit: float
    text: str

    @property
    def blocks(self) -> bool:
        return self.state != 'passed' if self.kind == 'safety' else self.state == 'failed'


# enough episodes, a safety gate blocks, a performance gate blocks, all of those are overridden
VERDICTS: dict[tuple[bool, bool, bool, bool], GateVerdict] = {
    (False, False, False, False): 'too_few',
    (False, False, False, True): 'too_few',
    (False, False, True, False): 'too_few',
    (False, False, True, True): 'too_few',
    # what is unsafe in few episodes is unsafe
    (False, True, False, False): 'refused',
    (False, True, False, True): 'refused',
    (False, True, True, False): 'refused',
    (False, True, True, True): 'refused',
    (True, False, False, False): 'passed',
    (True, False, False, True): 'passed',
    (True, False, True, False): 'held',
    (True, False, True, True): 'overridden',
    (True, True, False, False): 'refused',
    (True, True, False, True): 'refused',
    (True, True, True, False): 'refused',
    (True, True, True, True): 'refused',
}


def evaluate(figures: GateFigures, limits: GateLimits) -> tuple[Gate, ...]:
    """Return all gates, safety first."""
    return (
        _finite(figures),
        _cage(figures, limits),
        _velocity(figures, limits),
        _tasks_not_worse(figures, limits),
        _success(figures, limits),
        _latency(figures, limits),
        _memory(figures, limits),
        _at_least('similarity', 'all tasks', figures.overall, limits),
        _task_similarity(figures, limits),
    )


def verdict(
    gates: Collection[Gate], episodes: int, limits: GateLimits, overridden: Collection[str]
) -> GateVerdict:
    """Return the verdict of the table; `overridden` are names of performance gates."""
    blocking = [gate for gate in gates if gate.blocks]
    performance = [gate for gate in blocking if gate.kind == 'performance']
    return VERDICTS[
        episodes >= limits.minimum_episodes,
        len(performance) < len(blocking),
        bool(performance),
        bool(performance) and all(gate.name in overridden for gate in performance),
    ]


# safety


def _finite(figures: GateFigures) -> Gate:
    found = figures.candidate
    if not found.chunks:
        return _unmeasured('finite', 0, 'no request was replayed')
    text = f'{found.failed} of {found.chunks} replies failed'
    if found.failed:
        text += f', the first: {found.first_failure}. None may'
    return _gate('finite', not found.failed, found.failed, 0, text)


def _cage(figures: GateFigures, limits: GateLimits) -> Gate:
    new, old = figures.candidate, figures.parent
    lacking = new.chunks - new.failed - new.caged
    if lacking or not new.caged:
        text = (
            f'{lacking} chunks are of robots whose limits the recordings lack (they are in the '
            'calls of open_session); name the robot file: --robot FILE'
        )
        return _unmeasured('cage', limits.cage_percent, text)
    value, parent = 100 * new.changed_share, 100 * old.changed_share
    if parent > MAX_PARENT_PERCENT:
        text = f'the cage would change {parent:.3g} % of the parent: these are not its limits'
        return _unmeasured('cage', limits.cage_percent, text)
    limit = max(limits.cage_percent, limits.cage_ratio * parent)
    text = f'the cage would change {value:.3g} % of {new.caged} chunks (parent {parent:.3g} %)'
    text = f'{text}; at most {limit:.3g} % may be'
    return _gate('cage', value <= limit, value, limit, text)


def _velocity(figures: GateFigures, limits: GateLimits) -> Gate:
    distances = velocity_distances(figures.parent.velocities, figures.candidate.velocities)
    limit = limits.velocity_distance
    if not len(distances):
        text = 'no chunk of two rows, or other actions'
        return _unmeasured('velocity', limit, text)
    value, action = float(distances.max()), int(distances.argmax())
    text = (
        f'the velocities of action {action + 1} are {value:.3g} spreads from those of the parent; '
        f'at most {limit:g} may be'
    )
    return _gate('velocity', value <= limit, value, limit, text)


def _tasks_not_worse(figures: GateFigures, limits: GateLimits) -> Gate:
    """No task is shown to be worse; without outcomes of both, none is."""
    level = Terms().rollback_level(max(1, len(figures.tasks)))
    worst, text = 0.0, 'no task is shown to be worse'
    for name, task in figures.tasks.items():
        evidence = worse_evidence(task.parent, task.candidate, limits.margin)
        if evidence >= max(level, worst):
            text = f'worse in the task {name!r} by more than the margin: {_rates(task)}'
        worst = max(worst, evidence)
    return _gate('tasks', worst < level, _odds(worst), _odds(level), text)


# performance


def _success(figures: GateFigures, limits: GateLimits) -> Gate:
    """The candidate is shown to be not worse by the margin, where it has outcomes."""
    overall, level = figures.overall, Terms().promotion_level
    if not sum(overall.candidate) or not sum(overall.parent):
        return _unmeasured(
            'success',
            _odds(level),
            'no outcomes of both policies; shadow and canary decide',
        )
    evidence = not_worse_evidence(overall, limits.margin)
    text = f'{_rates(overall)}: evidence of {_odds(evidence):.3g} : 1 that it is not worse'
    if evidence < level:
        text += f' by {100 * limits.margin:g} points; {_odds(level):.3g} : 1 is needed, '
        text += _forecast(overall, limits.margin, level)
    is_shown = evidence >= level
    return _gate('success', is_shown, _odds(evidence), _odds(level), text)


def not_worse_evidence(task: TaskFigures, margin: float) -> float:
    """Return the log e that the candidate's rate is above the parent's minus the margin."""
    return worse_evidence(task.candidate, task.parent, -margin)


def _forecast(task: TaskFigures, margin: float, level: float) -> str:
    """Return how many episodes of the candidate would be enough at the present rates."""
    successes, failures = task.candidate
    known = successes + failures
    episodes = known
    while episodes <= MAX_FORECAST_EPISODES:
        episodes = max(episodes + 1, math.ceil(1.1 * episodes))
        good = round(successes / known * episodes)
        found = TaskFigures(parent=task.parent, candidate=(good, episodes - good))
        if not_worse_evidence(found, margin) >= level:
            return f'about {episodes - known} more episodes of the candidate at this rate'
    return 'which more episodes of the candidate at this rate do not give'


def _latency(figures: GateFigures, limits: GateLimits) -> Gate:
    new, old = figures.candidate.latencies.p99_ms, figures.parent.latencies.p99_ms
    if not figures.is_parent_run or math.isnan(new) or math.isnan(old):
        return _unmeasured(
            'latency',
            limits.latency_ratio,
            'the parent did not run beside it; name its folder: --parent DIR',
        )
    value = new / max(old, LATENCY_FLOOR_MS)
    text = (
        f'p99 {new:.3g} ms, parent {old:.3g} ms; at most {limits.latency_ratio:g} times (below '
        f'{LATENCY_FLOOR_MS:g} ms counts as {LATENCY_FLOOR_MS:g} ms)'
    )
    limit = limits.latency_ratio
    return _gate('latency', value <= limit, value, limit, text)


def _memory(figures: GateFigures, limits: GateLimits) -> Gate:
    new, old = figures.candidate_bytes, figures.parent_bytes
    if not new or not old:
        text = 'the files of both policies are needed; name the parent: --parent DIR'
        return _unmeasured('memory', limits.memory_ratio, text)
    text = (
        f'files of {new / 1e6:.3g} MB, parent {old / 1e6:.3g} MB; at most '
        f'{limits.memory_ratio:g} times (below {MEMORY_FLOOR_BYTES / 1e6:g} MB counts as that)'
    )
    value, limit = new / max(old, MEMORY_FLOOR_BYTES), limits.memory_ratio
    return _gate('memory', value <= limit, value, limit, text)


def _task_similarity(figures: GateFigures, limits: GateLimits) -> Gate:
    tasks = {
        name: task
        for name, task in figures.tasks.items()
        if task.chunks >= MINIMUM_REPLIES and not math.isnan(task.similarity)
    }
    if not tasks:
        text = f'no task has {MINIMUM_REPLIES} replies'
        return _unmeasured('task_similarity', limits.similarity, text)
    name = min(tasks, key=lambda each: tasks[each].similarity)
    return _at_least('task_similarity', f'the task {name!r}', tasks[name], limits)


def _at_least(name: str, what: str, task: TaskFigures, limits: GateLimits) -> Gate:
    if math.isnan(task.similarity):
        return _unmeasured(name, limits.similarity, 'nothing moves')
    value = task.similarity
    text = (
        f'cosine of the motions in {what} {value:.3g}; at least {limits.similarity:g}, or a '
        'person says why it moves otherwise'
    )
    limit = limits.similarity
    return _gate(name, value >= limit, value, limit, text)


def _gate(name: str, passes: bool, value: float, limit: float, text: str) -> Gate:
    state: Literal['passed', 'failed'] = 'passed' if passes else 'failed'
    measured = None if math.isnan(value) else float(value)
    return Gate(name, _kind(name), state, measured, float(limit), text)


def _unmeasured(name: str, limit: float, text: str) -> Gate:
    return Gate(name, _kind(name), 'unmeasured', None, limit, text)


def _kind(name: str) -> Literal['safety', 'performance']:
    return 'safety' if name in SAFETY_GATES else 'performance'


def _rates(task: TaskFigures) -> str:
    def rate(counts: tuple[int, int]) -> str:
        total = sum(counts)
        return f'{100 * counts[0] / total:.0f} % of {total}' if total else 'no outcome'

    return f'candidate {rate(task.candidate)}, parent {rate(task.parent)}'


def _odds(log_e: float) -> float:
    return math.exp(min(log_e, 700.0))
