# SPDX-License-Identifier: Apache-2.0
"""
Guards that roll a canary back at once or block its promotion without data. Pure functions.

Each share of replies or commands has an alarm (alarms.py), which trips when the share is above its
bound now, independent of the earlier part of the step. The bound is the larger of the limit and
twice the champion's share. A guard without enough data blocks promotion. A limit of 0 disables a
guard, including its data requirement.
"""

from __future__ import annotations

from collections.abc import Mapping
import math

from lerobot_serve.contract.fingerprint import weights_of
from lerobot_serve.router.canary.facts import Facts, not_ready_reason, percentage, SlotFacts
from lerobot_serve.router.canary.guards.alarms import GUARDED_SHARES, GuardedShare, ShareAlarms
from lerobot_serve.router.canary.guards.halts import halt_text, HaltVerdict
from lerobot_serve.router.parameters import RouterParameters

# network jitter dominates the ratio below this latency
LATENCY_FLOOR_MS = 5.0
MIN_DIVERGENCE_SAMPLES = 20
# outcomes that each step needs of both slots
MIN_OUTCOMES = 5


def update_alarms(
    alarms: ShareAlarms, grown: Mapping[str, Mapping[str, int]], limits: RouterParameters
) -> None:
    """Add the growth of the counters of both slots, first the champion's."""
    for kind in GUARDED_SHARES:
        if not getattr(limits, kind.limit):
            continue
        events, total = (grown['champion'][name] for name in (kind.events, kind.total))
        baseline = alarms.baselines[kind.events]
        baseline.add(events, max(events, total), getattr(limits, kind.minimum))
        events, total = (grown['candidate'][name] for name in (kind.events, kind.total))
        alarms.of[kind.events].add(
            events,
            max(events, total),
            bound=kind.bound(alarms, limits),
            chunk=kind.chunk(limits),
        )


def rollback_reason(facts: Facts, alarms: ShareAlarms, limits: RouterParameters) -> str:
    """Return why the candidate must be rolled back; empty otherwise."""
    failed, *others = (_alarm_text(kind, facts, alarms, limits) for kind in GUARDED_SHARES)
    return (
        halt_text(facts, limits, HaltVerdict.ROLL_BACK)
        or failed
        or _latency_text(facts.candidate, facts.champion, limits)
        or next(filter(None, others), '')
        or _divergence_text(facts, limits.canary_max_divergence)
    )


def promotion_blocker(facts: Facts) -> str:
    """Return why an operator may not promote; empty when one may."""
    reason = facts.missing or not_ready_reason('candidate', facts.candidate)
    policy = facts.candidate.policy
    if reason or weights_of(policy) != weights_of(facts.champion.policy):
        return reason
    # a verdict on the candidate would bar both slots
    return f'both slots serve {policy}; load the candidate into its slot, or clear canary.plan'


def missing_data(facts: Facts, limits: RouterParameters) -> str:
    """Return the data that a step lacks, with the remedy; empty when it is complete."""
    return (
        _missing_outcomes(facts)
        or _missing_replies(facts, limits)
        or _missing_commands(facts.candidate, limits)
        or _missing_divergences(facts, limits.canary_max_divergence)
    )


def _short(percent: float) -> str:
    return f'{percent:.1f}' if percent < 10 else f'{percent:.0f}'


def _alarm_text(
    kind: GuardedShare, facts: Facts, alarms: ShareAlarms, limits: RouterParameters
) -> str:
    run = alarms.of[kind.events].strongest
    if not getattr(limits, kind.limit) or run.evidence < kind.level:
        return ''
    baseline = 100 * alarms.baselines[kind.events].share(getattr(limits, kind.minimum))
    oldest = f'; oldest action {facts.candidate.oldest_age_s:.2g} s'
    return (
        f'{run.events:.0f} of the last {run.count:.0f} {kind.events_text}: '
        f'{_short(percentage(run.events, run.count))} %, limit '
        f'{_short(100 * kind.bound(alarms, limits))} % (champion {_short(baseline)} %)'
        f'{oldest if kind.events == "fallbacks" else ""}'
    )


def _latency_text(candidate: SlotFacts, champion: SlotFacts, limits: RouterParameters) -> str:
    limit = limits.canary_max_latency_ratio
    if not limit or not _has_latency(candidate, limits) or not _has_latency(champion, limits):
        return ''
    bound_ms = limit * max(champion.latency_ms_p95, LATENCY_FLOOR_MS)
    if candidate.latency_ms_p95 <= bound_ms:
        return ''
    return (
        f'candidate latency p95 {candidate.latency_ms_p95:.0f} ms, champion '
        f'{champion.latency_ms_p95:.0f} ms; limit {bound_ms:.0f} ms ({limit:g}x)'
    )


def _has_latency(slot: SlotFacts, limits: RouterParameters) -> bool:
    return slot.replies >= limits.canary_minimum_replies and not math.isnan(slot.latency_ms_p95)


def _divergence_text(facts: Facts, limit: float) -> str:
    if (
        not limit
        or facts.divergence_samples < MIN_DIVERGENCE_SAMPLES
        or not facts.divergence > limit
    ):
        return ''
    return (
        f'divergence {facts.divergence:.2g} spreads (limit {limit:g}) over '
        f'{facts.divergence_samples} observations'
    )


def _missing_outcomes(facts: Facts) -> str:
    for name, slot in (('candidate', facts.candidate), ('champion', facts.champion)):
        if slot.reported < MIN_OUTCOMES:
            return (
                f'{slot.reported} of {slot.arm.begun} episodes of the {name} in this step have an '
                f'outcome, {MIN_OUTCOMES} are needed. Publish an EpisodeOutcome with '
                'SUCCESS or FAILURE for each episode'
            )
    return ''


def _missing_replies(facts: Facts, limits: RouterParameters) -> str:
    if not limits.canary_max_failed_percent and not limits.canary_max_latency_ratio:
        return ''
    if facts.candidate.replies < limits.canary_minimum_replies:
        return (
            f'too few replies of the candidate in this step: {facts.candidate.replies} of '
            f'{limits.canary_minimum_replies}'
        )
    for name, slot in (('candidate', facts.candidate), ('champion', facts.champion)):
        if limits.canary_max_latency_ratio and not _has_latency(slot, limits):
            return f'too few replies of the {name} to measure its latency ({slot.replies})'
    return ''


def _missing_commands(candidate: SlotFacts, limits: RouterParameters) -> str:
    if not limits.canary_max_trip_percent and not limits.canary_max_fallback_percent:
        return ''
    if candidate.commands >= limits.canary_minimum_commands:
        return ''
    return (
        f'too few commands of the candidate in this step: {candidate.commands} of '
        f'{limits.canary_minimum_commands}. Robots report executed actions with their requests '
        '(extension lerobot_serve.executed); if the number stays low, they send none. '
        'Limits of 0 % switch this guard off'
    )


def _missing_divergences(facts: Facts, limit: float) -> str:
    enough = facts.divergence_samples >= MIN_DIVERGENCE_SAMPLES and not math.isnan(
        facts.divergence
    )
    if not limit or enough:
        return ''
    return (
        f'too few observations with a divergence: {facts.divergence_samples} of '
        f'{MIN_DIVERGENCE_SAMPLES}; check that a shadow runs. A limit of 0 switches this guard off'
    )
