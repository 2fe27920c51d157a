# SPDX-License-Identifier: Apache-2.0
"""
The state of a rollout for an operator: plan, step, evidence, guards and the time still needed.

Pure functions of what a router publishes and of its canary parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
import math
from typing import Any

from lerobot_serve.contract.records import CanaryState, GuardState, ShadowSummary, SlotState
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.operate.fleet_state import headroom, RouterView, shown
from lerobot_serve.tools.operate.learners import learner_parts, learners_json, LearnerView
from lerobot_serve.tools.output.report import Facts, Part, Report
from lerobot_serve.tools.output.text import without_controls

Json = dict[str, Any]

LOG10_E = math.log10(math.e)
BAR_WIDTH, NAME_WIDTH = 30, 9
HOUR_S, MINUTE_S = 3600.0, 60.0
# GuardState.name -> in words, and what its samples are
GUARD_NAMES = {
    'failed_replies': 'failed requests',
    'latency': 'latency p95',
    'cage': 'changed by the cage',
    'fallback': 'from the fallback ladder',
    'halted': 'robots that halted',
    'divergence': 'divergence in shadow',
}
GUARD_SAMPLES = {
    'failed_replies': 'replies',
    'latency': 'replies',
    'cage': 'commands',
    'fallback': 'commands',
    'halted': 'halts',
    'divergence': 'comparisons',
}
# fields of records as JSON names them
GUARD_FIELDS = ('name', 'unit', 'value', 'limit', 'samples', 'minimum_samples', 'alarm')
SLOT_FIELDS = ('slot', 'policy', 'state', 'text', 'share_percent', 'chunks', 'requests_failed')
REPLICA_FIELDS = ('server', 'state', 'text', 'policy', 'chunks', 'latency_ms_p95')
SHADOW_FIELDS = {
    'policy': 'shadow_policy',
    'hours': 'hours_in_shadow',
    'episodes': 'episodes',
    'samples': 'samples',
    'divergence': 'divergence_mean',
    'cage_trips': 'cage_trips',
    'latency_ms_p95': 'latency_ms_p95',
    'unmet': 'unmet_requirements',
}
# evidence from which an alarm is shown
SHOWN_ALARM = 0.1


@dataclass(frozen=True, slots=True)
class EvidenceBar:
    """Evidence towards a decision: decimal logarithms, and their ratio in [0, 1]."""

    decision: str
    evidence: float
    needed: float

    @property
    def ratio(self) -> float:
        return min(1.0, max(0.0, self.evidence / self.needed)) if self.needed > 0 else 1.0

    @property
    def text(self) -> str:
        filled = round(BAR_WIDTH * self.ratio)
        return (
            f'[{"#" * filled}{"-" * (BAR_WIDTH - filled)}] '
            f'{100 * self.ratio:3.0f} %  (evidence {self.evidence:.2f} of {self.needed:.2f})'
        )


def rollout_report(
    router: RouterView,
    settings: RouterParameters,
    shadow: ShadowSummary | None = None,
    learners: Sequence[LearnerView] = (),
) -> Report:
    """Return plan, step, evidence and guards of a rollout, its slots and the learners."""
    parts: list[Part] = [
        _heading(router.name, router.canary),
        Facts(list(_policies(router.canary, settings.plan)), width=NAME_WIDTH),
        f'  {router.canary.text}',
        *map(_slot_line, router.state.slots),
        *shadow_lines(shadow),
        Facts([(bar.decision, bar.text) for bar in bars(router, settings)], width=NAME_WIDTH),
        Facts(
            [(f'guard {guard_title(each)}', guard_words(each)) for each in guards(router.canary)]
        ),
        *_forecast(router.canary),
    ]
    if learners:
        parts += ['', *learner_parts(learners)]
    return Report({**_data(router, settings, shadow), 'learners': learners_json(learners)}, parts)


def _data(router: RouterView, settings: RouterParameters, shadow: ShadowSummary | None) -> Json:
    canary, plan = router.canary, settings.plan
    return {
        'router': router.name,
        'state': canary.state.word,
        **shown(canary, 'text', candidate='candidate_policy', champion='champion_policy'),
        'plan': plan.text if plan else '',
        'plan_words': plan.words if plan else '',
        **shown(canary, 'step', 'step_count', 'share_percent'),
        'candidate_outcomes': candidate_outcomes(canary),
        'champion_outcomes': champion_outcomes(canary),
        'bars': [{**asdict(bar), 'ratio': bar.ratio} for bar in bars(router, settings)],
        'guards': [
            shown(each, *GUARD_FIELDS) | {'headroom': headroom(each)} for each in guards(canary)
        ],
        'episodes_left': episodes_left(canary),
        'hours_left': hours_left(canary),
        'slots': [
            shown(each, *SLOT_FIELDS)
            | {'replicas': [shown(replica, *REPLICA_FIELDS) for replica in each.replicas]}
            for each in router.state.slots
        ],
        'shadow': shadow and shown(shadow, **SHADOW_FIELDS),
        'is_watched': canary.is_watched,
    }


def bars(router: RouterView, settings: RouterParameters) -> tuple[EvidenceBar, ...]:
    """Return the two bars; none without a plan, or when the canary gathers no evidence."""
    plan, canary = settings.plan, router.canary
    if plan is None or canary.state not in ON_TRIAL:
        return ()
    worse = settings.rollback_level(len(plan.trials)) * LOG10_E
    promotion = settings.promotion_level * LOG10_E
    return (
        EvidenceBar('promote', canary.log10_evidence_not_worse, promotion),
        EvidenceBar('roll back', canary.log10_evidence_worse, worse),
    )


def guards(canary: CanaryState) -> tuple[GuardState, ...]:
    """Return the guards of a rollout on trial."""
    return canary.guards if canary.state in ON_TRIAL else ()


def candidate_outcomes(canary: CanaryState) -> tuple[int, int]:
    """Return successes and outcomes of the candidate in this step."""
    return canary.candidate_successes, canary.candidate_successes + canary.candidate_failures


def champion_outcomes(canary: CanaryState) -> tuple[int, int]:
    return canary.champion_successes, canary.champion_successes + canary.champion_failures


def episodes_left(canary: CanaryState) -> int | None:
    """Return how many more episodes of the candidate are expected; None if unknown."""
    expected = canary.estimated_remaining_episodes
    return expected if expected >= 0 else None


def hours_left(canary: CanaryState) -> float | None:
    """Return the hours that the episodes take at the rate of this step; None if unknown."""
    episodes, (_, outcomes) = episodes_left(canary), candidate_outcomes(canary)
    if episodes is None or not outcomes or canary.step_elapsed_s <= 0:
        return None
    return episodes * canary.step_elapsed_s / outcomes / HOUR_S


def _heading(router: str, canary: CanaryState) -> str:
    step = (
        f', step {canary.step + 1} of {canary.step_count}, {canary.share_percent} % of new '
        'episodes'
        if canary.step_count
        else ''
    )
    return f'{router}: {_phase_text(canary.state)}{step}'


def _policies(canary: CanaryState, plan: CanaryPlan | None) -> Iterator[tuple[str, str]]:
    if plan:
        yield 'plan', plan.words
    if canary.candidate_policy:
        yield 'candidate', f'{canary.candidate_policy}, {_rate(candidate_outcomes(canary))}'
        yield 'champion', f'{canary.champion_policy}, {_rate(champion_outcomes(canary))}'


def _slot_line(slot: SlotState) -> str:
    text = f': {slot.text}' if slot.text else ''
    return (
        f'  slot {slot.slot}: {slot.state.name}, {slot.share_percent} %, '
        f'{slot.policy or "no policy yet"}{text}'
    )


def shadow_lines(shadow: ShadowSummary | None) -> list[str]:
    """Return what a shadow has shown, and what slot b still lacks."""
    if shadow is None:
        return []
    distance, unmet = shadow.divergence_mean, shadow.unmet_requirements
    apart = f', {distance:.3g} apart' if math.isfinite(distance) else ''
    latency_ms = shadow.latency_ms_p95
    latency = f'{latency_ms:.0f} ms' if math.isfinite(latency_ms) else 'not known yet'
    return [
        f'  shadow {shadow.shadow_policy or "without a policy"}: {shadow.samples} requests of '
        f'{shadow.episodes} episodes in {shadow.hours_in_shadow:.2g} h{apart}, the cage would '
        f'change {shadow.cage_trips}, latency p95 {latency}',
        *([f'  slot b lacks: {unmet}'] if unmet else []),
    ]


def _forecast(canary: CanaryState) -> list[str]:
    left = episodes_left(canary)
    if left is None:
        return []
    return [f'  about {left} more episodes of the candidate{_hours_text(hours_left(canary))}']


def guard_title(guard: GuardState) -> str:
    """Return what a guard measures, in words."""
    return without_controls(GUARD_NAMES.get(guard.name, guard.name))


def guard_words(guard: GuardState) -> str:
    """Return the value of a guard with its headroom, and the data that it still needs."""
    if not guard.limit:
        return 'off'
    limit = f'limit {guard.limit:.3g}{_unit(guard)}'
    counted = f'{guard.samples} of {guard.minimum_samples} {GUARD_SAMPLES.get(guard.name, "")}'
    needed = f', {counted.strip()}' if guard.samples < guard.minimum_samples else ''
    left = headroom(guard)
    if left is None:
        return f'{limit}; no data yet{needed}'
    room = f'{100 * left:.0f} % left' if left >= 0 else 'above the limit'
    alarm = f', alarm {100 * guard.alarm:.0f} %' if guard.alarm >= SHOWN_ALARM else ''
    return f'{guard.value:.3g}{_unit(guard)}, {limit}, {room}{needed}{alarm}'


def _unit(guard: GuardState) -> str:
    return guard.unit if guard.unit == '%' else f' {guard.unit}'.rstrip()


def _hours_text(hours: float | None) -> str:
    if hours is None:
        return ''
    if hours < 1:
        return f', {hours * HOUR_S / MINUTE_S:.2g} minutes at the present rate'
    return f', {hours:.2g} hours at the present rate'


def _rate(outcomes: tuple[int, int]) -> str:
    good, total = outcomes
    return f'{good} of {total} episodes succeeded' if total else 'no outcome in this step'


def changes(before: RouterView, after: RouterView) -> list[str]:
    """Return what differs between two states of a router, one line each; counts are left out."""
    canary = (before.canary, after.canary)
    pairs = [
        ('rollout', *(_phase_text(c.state) for c in canary)),
        ('step', *(str(c.step + 1) for c in canary)),
        ('split to slot a', f'{before.state.split_percent} %', f'{after.state.split_percent} %'),
        ('candidate', *(c.candidate_policy for c in canary)),
    ]
    for old in before.state.slots:
        new = after.slot(old.slot)
        if new:
            pairs += [
                (f'slot {old.slot}', old.state.name, new.state.name),
                (f'share of slot {old.slot}', f'{old.share_percent} %', f'{new.share_percent} %'),
                (f'policy of slot {old.slot}', old.policy, new.policy),
            ]
    return [
        without_controls(f'{name}: {old or "none"} -> {new or "none"}')
        for name, old, new in pairs
        if old != new
    ]


def _phase_text(phase: CanaryPhase) -> str:
    return phase.word.replace('_', ' ')
