# SPDX-License-Identifier: Apache-2.0
"""
The state of a rollout for an operator: plan, step, evidence, guards and the time still needed.

Pure functions of what a router publishes and of its canary parameters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
import math
from typing import Any

from lerobot_serve.contract.records import GuardState, ShadowSummary, SlotState
from lerobot_serve.router.canary.plan import CanaryPlan, GuardLimits, Terms
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.operate.fleet_state import headroom, RouterView, shown
from lerobot_serve.tools.output.text import without_controls

LOG10_E = math.log10(math.e)
BAR_WIDTH = 30
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
class RolloutSettings:
    """The canary parameters of a router, and whether it has a shadow."""

    plan: CanaryPlan | None = None
    terms: Terms = field(default_factory=Terms)
    limits: GuardLimits = field(default_factory=GuardLimits)
    has_shadow: bool = False


@dataclass(frozen=True, slots=True)
class EvidenceBar:
    """Evidence towards a decision: decimal logarithms, and their ratio in [0, 1]."""

    decision: str
    evidence: float
    needed: float

    @property
    def ratio(self) -> float:
        return min(1.0, max(0.0, self.evidence / self.needed)) if self.needed > 0 else 1.0


@dataclass(frozen=True, slots=True)
class RolloutView:
    """The state of a rollout; `hours_left` is None when it is unknown."""

    router: str
    state: str
    text: str
    candidate: str
    champion: str
    # as the parameter, and in words
    plan: str
    plan_words: str
    step: int
    step_count: int
    share_percent: int
    candidate_outcomes: tuple[int, int]
    champion_outcomes: tuple[int, int]
    bars: tuple[EvidenceBar, ...]
    guards: tuple[GuardState, ...]
    episodes_left: int | None
    hours_left: float | None
    slots: tuple[SlotState, ...]
    shadow: ShadowSummary | None = None
    is_watched: bool = False


def rollout_view(
    router: RouterView, settings: RolloutSettings, shadow: ShadowSummary | None = None
) -> RolloutView:
    """Return the view of the rollout of a router."""
    canary = router.canary
    # negative: unknown
    expected = canary.estimated_remaining_episodes
    left = expected if expected >= 0 else None
    outcomes = canary.candidate_successes + canary.candidate_failures
    return RolloutView(
        router=router.name,
        state=canary.state.word,
        text=canary.text,
        candidate=canary.candidate_policy,
        champion=canary.champion_policy,
        plan=settings.plan.text if settings.plan else '',
        plan_words=settings.plan.words if settings.plan else '',
        step=canary.step,
        step_count=canary.step_count,
        share_percent=canary.share_percent,
        candidate_outcomes=(canary.candidate_successes, outcomes),
        champion_outcomes=(
            canary.champion_successes,
            canary.champion_successes + canary.champion_failures,
        ),
        bars=_bars(router, settings),
        guards=canary.guards if canary.state in ON_TRIAL else (),
        episodes_left=left,
        hours_left=hours_left(left, outcomes, canary.step_elapsed_s),
        slots=router.state.slots,
        shadow=shadow,
        is_watched=canary.is_watched,
    )


def hours_left(episodes: int | None, outcomes: int, elapsed_s: float) -> float | None:
    """Return the hours that the episodes take at the rate of this step; None if unknown."""
    if episodes is None or not outcomes or elapsed_s <= 0:
        return None
    return episodes * elapsed_s / outcomes / HOUR_S


def _bars(router: RouterView, settings: RolloutSettings) -> tuple[EvidenceBar, ...]:
    """Return the two bars; none without a plan, or when the canary gathers no evidence."""
    plan, terms, canary = settings.plan, settings.terms, router.canary
    if plan is None or canary.state not in ON_TRIAL:
        return ()
    worse = terms.rollback_level(len(plan.trials)) * LOG10_E
    promotion = terms.promotion_level * LOG10_E
    return (
        EvidenceBar('promote', canary.log10_evidence_not_worse, promotion),
        EvidenceBar('roll back', canary.log10_evidence_worse, worse),
    )


def as_json(view: RolloutView) -> dict[str, Any]:
    """Return the view as a JSON object."""
    found = asdict(view)
    found['bars'] = [{**asdict(bar), 'ratio': bar.ratio} for bar in view.bars]
    found['guards'] = [
        shown(each, *GUARD_FIELDS) | {'headroom': headroom(each)} for each in view.guards
    ]
    found['slots'] = [
        shown(each, *SLOT_FIELDS)
        | {'replicas': [shown(replica, *REPLICA_FIELDS) for replica in each.replicas]}
        for each in view.slots
    ]
    found['shadow'] = view.shadow and shown(view.shadow, **SHADOW_FIELDS)
    return found


def as_text(view: RolloutView) -> str:
    """Return the view as lines of text; names and texts may come from anywhere."""
    lines = [*_heading(view), *_slot_lines(view), *shadow_lines(view.shadow), *_trial_lines(view)]
    return '\n'.join(map(without_controls, lines))


def _heading(view: RolloutView) -> list[str]:
    step = (
        f', step {view.step + 1} of {view.step_count}, {view.share_percent} % of new episodes'
        if view.step_count
        else ''
    )
    lines = [f'{view.router}: {view.state.replace("_", " ")}{step}']
    if view.plan:
        lines.append(f'  plan       {view.plan_words}')
    if view.candidate:
        lines.append(f'  candidate  {view.candidate}, {_rate(view.candidate_outcomes)}')
        lines.append(f'  champion   {view.champion}, {_rate(view.champion_outcomes)}')
    return [*lines, f'  {view.text}']


def _slot_lines(view: RolloutView) -> list[str]:
    return [
        f'  slot {slot.slot}: {slot.state.name}, {slot.share_percent} %, '
        f'{slot.policy or "no policy yet"}{f": {slot.text}" if slot.text else ""}'
        for slot in view.slots
    ]


def shadow_lines(shadow: ShadowSummary | None) -> list[str]:
    """Return what a shadow has shown, and what slot b still lacks."""
    if shadow is None:
        return []
    distance, unmet = shadow.divergence_mean, shadow.unmet_requirements
    apart = f', {distance:.3g} apart' if math.isfinite(distance) else ''
    lines = [
        f'  shadow {shadow.shadow_policy or "without a policy"}: {shadow.samples} requests of '
        f'{shadow.episodes} episodes in {shadow.hours_in_shadow:.2g} h{apart}, the cage would '
        f'change {shadow.cage_trips}, latency p95 {_milliseconds(shadow)}'
    ]
    lines += [f'  slot b lacks: {unmet}'] if unmet else []
    return list(map(without_controls, lines))


def _milliseconds(shadow: ShadowSummary) -> str:
    latency_ms = shadow.latency_ms_p95
    return f'{latency_ms:.0f} ms' if math.isfinite(latency_ms) else 'not known yet'


def _trial_lines(view: RolloutView) -> list[str]:
    lines = [bar_text(bar) for bar in view.bars]
    lines += [f'  guard {guard_text(guard)}' for guard in view.guards]
    if view.episodes_left is not None:
        lines.append(
            f'  about {view.episodes_left} more episodes of the candidate'
            f'{_hours_text(view.hours_left)}'
        )
    return lines


def bar_text(bar: EvidenceBar) -> str:
    """Return one bar as a line."""
    filled = round(BAR_WIDTH * bar.ratio)
    return (
        f'  {bar.decision:<10} [{"#" * filled}{"-" * (BAR_WIDTH - filled)}] '
        f'{100 * bar.ratio:3.0f} %  (evidence {bar.evidence:.2f} of {bar.needed:.2f})'
    )


def guard_text(guard: GuardState) -> str:
    """Return one guard as a line."""
    return f'{guard_title(guard)}: {guard_words(guard)}'


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
