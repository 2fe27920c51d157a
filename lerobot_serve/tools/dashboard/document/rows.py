# SPDX-License-Identifier: Apache-2.0
"""
The rows of robots, routers, servers and learners in the document. Pure functions of what they
publish and of parameters; the poll thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from lerobot_serve.contract.records import (
    DropCount,
    GuardState,
    ReplicaState,
    ServerStatus,
    ShadowSummary,
    SlotState,
)
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.tools.dashboard.document.merge_patch import Json, without_nulls
from lerobot_serve.tools.dashboard.document.printed_numbers import (
    bounded,
    rounded,
    significant,
    whole,
)
from lerobot_serve.tools.dashboard.robot.edge_state import EdgeSample
from lerobot_serve.tools.operate.commands import rollout_rule
from lerobot_serve.tools.operate.fleet_state import (
    headroom,
    latency_ms_p95,
    RobotView,
    RouterView,
    shown,
)
from lerobot_serve.tools.operate.learners.learner_state import LearnerView
from lerobot_serve.tools.operate.learners.learner_view import FIELDS as LEARNER_FIELDS
from lerobot_serve.tools.operate.robots.fleet_table import (
    FIELDS,
    is_stopped,
    MEASURED,
    MOVING_RUNG,
    SEVERITY,
    UNKNOWN_SEVERITY,
)
from lerobot_serve.tools.operate.rollout import rollout_view
from lerobot_serve.tools.operate.rollout.rollout_view import RolloutSettings
from lerobot_serve.tools.operate.rollout.steering import steering_rule, STEERING_VERBS
from lerobot_serve.tools.operate.rule import Rule, Verb

SILENT_RANK, STOPPED_RANK, FIRST_RANK = 0, 1, 2
# change with every message; a row takes them at most once per NOISY_PERIOD_S
NOISY = ('queue_s', 'action_age_s', 'round_trip_ms', 'network_ms')


def robot_row(sample: EdgeSample, action_age_limit_s: float | None) -> Json:
    """Return the row of a robot that is heard of."""
    robot = sample.robot
    return without_nulls(
        {
            'name': robot.name,
            **_fields(robot.edge, *(name for name in FIELDS if name not in MEASURED)),
            **noisy_numbers(sample),
            'stopped': is_stopped(robot),
            'action_age_limit_s': action_age_limit_s,
            'rank': rank(robot),
        }
    )


def noisy_numbers(sample: EdgeSample) -> Json:
    """Return what changes with each message; None for what is not a number."""
    return {
        'queue_s': rounded(sample.queue_s, 1),
        'action_age_s': rounded(sample.action_age_s, 1),
        'round_trip_ms': whole(sample.round_trip_ms),
        'network_ms': whole(sample.network_ms),
    }


def with_new_numbers(row: Json, sample: EdgeSample) -> Json:
    """Return a row with the noisy numbers of a sample."""
    return without_nulls({**row, **noisy_numbers(sample)})


def with_old_numbers(row: Json, before: Json) -> Json:
    """Return a row with the noisy numbers of the one before."""
    kept = {key: value for key, value in row.items() if key not in NOISY}
    return kept | {key: before[key] for key in NOISY if key in before}


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
    known = {key: value for key, value in row.items() if key not in NOISY}
    return known | {'rank': SILENT_RANK, 'silent_since_ms': silent_since_ms}


LOSS_DIGITS = 4


def learner_row(learner: LearnerView) -> Json:
    """Return the row of a learner that is heard of; a number that is not known is absent."""
    return without_nulls(
        {
            'phase': learner.phase,
            **_fields(learner.state, *LEARNER_FIELDS),
            'is_running': learner.is_running,
            'progress': rounded(learner.progress, 3),
            'loss': significant(learner.loss, LOSS_DIGITS),
            'has_diverged': learner.has_diverged,
            'remaining_s': whole(learner.remaining_s),
            'dropped': _dropped(learner.state.dropped),
        }
    )


def router_row(
    view: RouterView,
    settings: RolloutSettings,
    shadow: ShadowSummary | None,
    decisions: list[Json],
) -> Json:
    """Return the row of a router that is heard of; `decisions` are the newest first."""
    state = view.state
    return without_nulls(
        {
            **_fields(state, 'health', 'text', 'split_percent', 'sessions'),
            'slots': {slot.slot: _slot(slot) for slot in state.slots},
            'rollout': _rollout(view, settings),
            'shadow': _shadow(shadow),
            'decisions': decisions,
            'actions': actions(view, settings.plan),
        }
    )


def _slot(slot: SlotState) -> Json:
    return {
        **_fields(
            slot,
            *('policy', 'state', 'text', 'share_percent', 'episodes', 'requests'),
            'requests_failed',
            succeeded='episodes_succeeded',
            failed='episodes_failed',
        ),
        'latency_p95_ms': whole(latency_ms_p95(slot)),
        'replicas': {bounded(each.server): _replica(each) for each in slot.replicas},
    }


def _replica(replica: ReplicaState) -> Json:
    return {
        **_fields(replica, 'state', 'text', 'policy'),
        'latency_p95_ms': whole(replica.latency_ms_p95),
    }


def _rollout(view: RouterView, settings: RolloutSettings) -> Json:
    canary = view.canary
    hours = rollout_view.hours_left(canary)
    return {
        'phase': canary.state.name,
        **_fields(
            canary,
            *('step', 'step_count', 'share_percent', 'text'),
            candidate='candidate_policy',
            champion='champion_policy',
        ),
        'plan': settings.plan.text if settings.plan else '',
        'bars': [
            {
                'decision': bar.decision,
                'evidence': rounded(bar.evidence, 3),
                'needed': rounded(bar.needed, 3),
                'ratio': rounded(bar.ratio, 3),
            }
            for bar in rollout_view.bars(view, settings)
        ],
        'guards': [_guard(each) for each in rollout_view.guards(canary)],
        'episodes_left': rollout_view.episodes_left(canary),
        'hours_left': None if hours is None else significant(hours, 2),
        'candidate_outcomes': list(rollout_view.candidate_outcomes(canary)),
        'champion_outcomes': list(rollout_view.champion_outcomes(canary)),
    }


def _guard(guard: GuardState) -> Json:
    left = headroom(guard)
    return {
        'name': rollout_view.guard_title(guard),
        'text': rollout_view.guard_words(guard),
        'headroom': None if left is None else significant(left),
        'is_off': not guard.limit,
    }


def _shadow(shadow: ShadowSummary | None) -> Json | None:
    if shadow is None:
        return None
    return {
        **_fields(
            shadow,
            *('episodes', 'samples', 'cage_trips'),
            policy='shadow_policy',
            unmet='unmet_requirements',
        ),
        'hours': significant(shadow.hours_in_shadow, 2),
        'divergence': significant(shadow.divergence_mean),
        'latency_p95_ms': whole(shadow.latency_ms_p95),
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
    return without_nulls(
        {
            **_fields(
                status,
                *('policy', 'slot', 'device', 'state', 'text', 'max_sessions'),
                *('requests', 'chunks', 'superseded'),
                sessions='active_sessions',
            ),
            'load': rounded(status.load, 2),
            'inference_p50_ms': rounded(status.inference_ms_p50, 1),
            'inference_p99_ms': rounded(status.inference_ms_p99, 1),
            'queue_wait_p99_ms': rounded(status.queue_wait_ms_p99, 1),
            'memory_mb': whole(status.memory_mb) or None,
            'dropped': _dropped(sorted(status.dropped, key=lambda each: each.reason)),
        }
    )


def _fields(record: Struct, *names: str, **others: str) -> Json:
    """Return fields of a record, as `shown` does; texts are bounded."""
    found = shown(record, *names, **others).items()
    return {key: bounded(value) if isinstance(value, str) else value for key, value in found}


def _dropped(counts: Iterable[DropCount]) -> Json:
    return {bounded(each.reason): each.count for each in counts}
