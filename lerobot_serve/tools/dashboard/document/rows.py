# SPDX-License-Identifier: Apache-2.0
"""
The rows of robots, routers, servers and learners in the document: the fields of their records by
their names, and what is computed of them. Pure; the poll thread.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from lerobot_serve.contract.records import GuardState, ServerStatus, ShadowSummary
from lerobot_serve.contract.types import Constants
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.dashboard.document.fleet_document import (
    bounded,
    Json,
    significant,
    without_nulls,
)
from lerobot_serve.tools.operate.commands import rollout_rule
from lerobot_serve.tools.operate.fleet_state import headroom, RobotView, RouterView
from lerobot_serve.tools.operate.learners import LearnerView
from lerobot_serve.tools.operate.robots import (
    FIELDS,
    is_stopped,
    MOVING_RUNG,
    SEVERITY,
    UNKNOWN_SEVERITY,
)
from lerobot_serve.tools.operate.rollout import rollout_view
from lerobot_serve.tools.operate.rollout.rollout_view import EvidenceBar
from lerobot_serve.tools.operate.rollout.steering import steering_rule, STEERING_VERBS
from lerobot_serve.tools.operate.rule import Rule, Verb

SILENT_RANK, STOPPED_RANK, FIRST_RANK = 0, 1, 2
# of a robot, new with every message; a row takes them at most once per NOISY_PERIOD_S
NOISY = ('queue_remaining_s', 'action_age_s', 'round_trip_ms', 'network_ms')
# of all records: times that are new with every message
LEFT_OUT = ('stamp', 'step_elapsed_s')


def row_of(record: Struct, *names: str) -> Json:
    """
    Return fields of a record by their names, all without names: constants as theirs, bounded texts
    and numbers, None for a number that is not known; a list is an object with the first field of
    its records as keys.
    """
    wanted = names or (name for name in record.__struct_fields__ if name not in LEFT_OUT)
    return {name: _shown(getattr(record, name)) for name in wanted}


def _shown(value: Any) -> Any:
    if isinstance(value, Constants):
        return value.name
    if isinstance(value, str):
        return bounded(value)
    if isinstance(value, float):
        return significant(value)
    return dict(map(_entry, value)) if isinstance(value, tuple) else value


def _entry(record: Struct) -> tuple[str, Any]:
    """Return the first field of a record, and the row of the others, or the only other field."""
    key, *names = record.__struct_fields__
    row = row_of(record, *names)
    return bounded(getattr(record, key)), row[names[0]] if len(names) == 1 else row


def robot_row(robot: RobotView, action_age_limit_s: float | None) -> Json:
    """Return the row of a robot that is heard of."""
    return without_nulls(
        {
            'name': robot.name,
            **row_of(robot.edge, *FIELDS, 'network_ms'),
            'stopped': is_stopped(robot),
            'action_age_limit_s': action_age_limit_s,
            'rank': rank(robot),
        }
    )


def with_old_numbers(row: Json, before: Json) -> Json:
    """Return a row with the noisy numbers of the one before."""
    return _without_numbers(row) | {key: before[key] for key in NOISY if key in before}


def rank(robot: RobotView) -> int:
    """Return the place among the robots, 0 the worst: the order of `lerobot-serve robots`."""
    if is_stopped(robot):
        return STOPPED_RANK
    severity = SEVERITY.get(robot.state, UNKNOWN_SEVERITY)
    return FIRST_RANK + 2 * severity + (robot.edge.rung is MOVING_RUNG)


def silent_row(row: Json, silent_since_ms: int) -> Json:
    """
    Return the row of a robot that is not heard of any more: the first one, without what it
    measured. Its texts are the last ones.
    """
    return _without_numbers(row) | {'rank': SILENT_RANK, 'silent_since_ms': silent_since_ms}


def _without_numbers(row: Json) -> Json:
    return {key: value for key, value in row.items() if key not in NOISY}


def learner_row(learner: LearnerView) -> Json:
    """Return the row of a learner that is heard of; a number that is not known is absent."""
    return without_nulls(
        {
            **row_of(learner.state),
            'is_running': learner.is_running,
            'has_diverged': learner.has_diverged,
            'progress': significant(learner.progress),
            'remaining_s': significant(learner.remaining_s),
        }
    )


def router_row(
    view: RouterView,
    settings: RouterParameters,
    shadow: ShadowSummary | None,
    decisions: list[Json],
) -> Json:
    """Return the row of a router that is heard of; `decisions` are the newest first."""
    return without_nulls(
        {
            **row_of(view.state),
            'rollout': _rollout(view, settings),
            'shadow': shadow and row_of(shadow),
            'decisions': decisions,
            'actions': actions(view, settings.plan),
        }
    )


def _rollout(view: RouterView, settings: RouterParameters) -> Json:
    canary = view.canary
    return {
        **row_of(canary),
        'plan': settings.plan.text if settings.plan else '',
        'bars': [_bar(each) for each in rollout_view.bars(view, settings)],
        'guards': [_guard(each) for each in rollout_view.guards(canary)],
        'episodes_left': rollout_view.episodes_left(canary),
        'hours_left': significant(rollout_view.hours_left(canary), 2),
    }


def _bar(bar: EvidenceBar) -> Json:
    numbers = {name: significant(getattr(bar, name)) for name in ('evidence', 'needed', 'ratio')}
    return {'decision': bar.decision, **numbers}


def _guard(guard: GuardState) -> Json:
    return {
        'name': rollout_view.guard_title(guard),
        'text': rollout_view.guard_words(guard),
        'headroom': significant(headroom(guard)),
    }


def actions(view: RouterView, plan: CanaryPlan | None) -> Json:
    """Return what each verb of `lerobot-serve rollout` would do now."""
    rules = {verb: steering_rule(verb, view, lambda: plan) for verb in STEERING_VERBS}
    # whether slot b may get episodes, or serve meanwhile, is looked at when the button is pressed
    rules |= {verb: rollout_rule(verb, view.canary) for verb in (Verb.START, Verb.FINISH)}
    return {verb.value: effect_of(rule) for verb, rule in rules.items()}


def effect_of(rule: Rule) -> Json:
    """Return a rule for the page."""
    return {'effect': rule.effect.value, 'text': bounded(rule.text), 'asks': rule.asks}


def server_row(status: ServerStatus) -> Json:
    """Return the row of a policy server that is heard of."""
    return without_nulls(row_of(status))
