# SPDX-License-Identifier: Apache-2.0
"""The rows of routers and servers in the document. Pure functions of messages and parameters."""

from __future__ import annotations

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
from lerobot_serve.tools.operate.commands import rollout_rule, Rule, Verb
from lerobot_serve.tools.operate.fleet_state import headroom, latency_ms_p95, RouterView
from lerobot_serve.tools.operate.rollout.rollout_view import (
    guard_title,
    guard_words,
    rollout_view,
    RolloutSettings,
    RolloutView,
)
from lerobot_serve.tools.operate.rollout.steering import steering_rule, STEERING_VERBS


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
            'health': bounded(state.health),
            'text': bounded(state.text),
            'split_percent': state.split_percent,
            'sessions': state.sessions,
            'slots': {slot.slot: _slot(slot) for slot in state.slots},
            'rollout': _rollout(rollout_view(view, settings, shadow), view),
            'shadow': _shadow(shadow),
            'decisions': decisions,
            'actions': actions(view, settings.plan),
        }
    )


def _slot(slot: SlotState) -> Json:
    return {
        'policy': bounded(slot.policy),
        'state': slot.state.name,
        'text': bounded(slot.text),
        'share_percent': slot.share_percent,
        'episodes': slot.episodes,
        'requests': slot.requests,
        'requests_failed': slot.requests_failed,
        'succeeded': slot.episodes_succeeded,
        'failed': slot.episodes_failed,
        'latency_p95_ms': whole(latency_ms_p95(slot)),
        'replicas': {bounded(each.server): _replica(each) for each in slot.replicas},
    }


def _replica(replica: ReplicaState) -> Json:
    return {
        'state': replica.state.name,
        'text': bounded(replica.text),
        'policy': bounded(replica.policy),
        'latency_p95_ms': whole(replica.latency_ms_p95),
    }


def _rollout(rollout: RolloutView, view: RouterView) -> Json:
    return {
        'phase': view.canary.state.name,
        'candidate': bounded(rollout.candidate),
        'champion': bounded(rollout.champion),
        'step': rollout.step,
        'step_count': rollout.step_count,
        'share_percent': rollout.share_percent,
        'plan': rollout.plan,
        'text': bounded(rollout.text),
        'bars': [
            {
                'decision': bar.decision,
                'evidence': rounded(bar.evidence, 3),
                'needed': rounded(bar.needed, 3),
                'ratio': rounded(bar.ratio, 3),
            }
            for bar in rollout.bars
        ],
        'guards': [_guard(each) for each in rollout.guards],
        'episodes_left': rollout.episodes_left,
        'hours_left': None if rollout.hours_left is None else significant(rollout.hours_left, 2),
        'candidate_outcomes': list(rollout.candidate_outcomes),
        'champion_outcomes': list(rollout.champion_outcomes),
    }


def _guard(guard: GuardState) -> Json:
    left = headroom(guard)
    return {
        'name': guard_title(guard),
        'text': guard_words(guard),
        'headroom': None if left is None else significant(left),
        'is_off': not guard.limit,
    }


def _shadow(shadow: ShadowSummary | None) -> Json | None:
    if shadow is None:
        return None
    return {
        'policy': bounded(shadow.shadow_policy),
        'hours': significant(shadow.hours_in_shadow, 2),
        'episodes': shadow.episodes,
        'samples': shadow.samples,
        'divergence': significant(shadow.divergence_mean),
        'cage_trips': shadow.cage_trips,
        'latency_p95_ms': whole(shadow.latency_ms_p95),
        'unmet': bounded(shadow.unmet_requirements),
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
            'policy': bounded(status.policy),
            'slot': bounded(status.slot),
            'device': bounded(status.device),
            'state': status.state.name,
            'text': bounded(status.text),
            'load': rounded(status.load, 2),
            'inference_p50_ms': rounded(status.inference_ms_p50, 1),
            'inference_p99_ms': rounded(status.inference_ms_p99, 1),
            'queue_wait_p99_ms': rounded(status.queue_wait_ms_p99, 1),
            'memory_mb': whole(status.memory_mb) or None,
            'sessions': status.active_sessions,
            'max_sessions': status.max_sessions,
            'requests': status.requests,
            'chunks': status.chunks,
            'superseded': status.superseded,
            'dropped': {bounded(each.reason): each.count for each in _counted(status)},
        }
    )


def _counted(status: ServerStatus) -> list[DropCount]:
    return sorted(status.dropped, key=lambda each: str(each.reason))
