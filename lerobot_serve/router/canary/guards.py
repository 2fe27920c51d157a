# SPDX-License-Identifier: Apache-2.0
"""
Guards that roll a canary back at once, and missing data that holds it. Pure functions.

Shares of answers and commands have an alarm each (see alarms): it sounds when the share is now
above its bound, however long the step was good before. The bound is the limit, or twice the
champion's share where that is more. What has a limit and was not seen often enough holds: a
canary that promotes on missing data promotes a policy whose faults it could not see. A limit of 0
switches a guard off, and with it what would hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
import math

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.alarms import (
    alarm_threshold,
    CHUNKS_PER_ALARM,
    REPLIES_PER_ALARM,
    ShareAlarms,
)
from lerobot_serve.router.canary.facts import Facts, SlotFacts

# below it the network's own jitter makes the ratio
LATENCY_FLOOR_MS = 5.0
# a share of the champion's is doubled before it is compared: both are noisy
CHAMPION_SHARE_FACTOR = 2.0
MIN_DIVERGENCE_SAMPLES = 20
# verdicts that every step needs of both slots
MIN_OUTCOMES = 5
# so many chunks of commands are the least that a step needs
MIN_COMMAND_CHUNKS = 5


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """
    Where a guard trips, 0 switches it off; and how much has to be seen before it can tell.

    The 95th percentile of 100 answers is the fifth largest; 3000 commands are 100 s of motion at
    30 Hz, several episodes.
    """

    failed_replies_percent: float = 2.0
    latency_ratio: float = 2.0
    trips_percent: float = 1.0
    fallbacks_percent: float = 5.0
    # in spreads of the champion itself
    divergence: float = 0.0
    minimum_replies: int = 100
    minimum_commands: int = 3000

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            high = 100.0 if entry.name.endswith('percent') else math.inf
            if not (math.isfinite(value) and 0 <= value <= high):
                allowed = 'in [0, 100]' if high == 100.0 else 'finite and at least 0'
                raise ParameterError(f'{entry.name} must be {allowed}, got {value!r}')


@dataclass(frozen=True, slots=True)
class GuardedShare:
    """A share that has an alarm: counters of the slots, and the fields of its limits."""

    events: str
    total: str
    limit: str
    minimum: str
    # what the events are, in the text
    words: str
    # whether each count is an observation, otherwise chunks of them
    single: bool = False

    def bound(self, alarms: ShareAlarms, limits: GuardLimits) -> float:
        """Return the share that is allowed now."""
        usual = alarms.usual[self.events].share(getattr(limits, self.minimum))
        return max(getattr(limits, self.limit) / 100, CHAMPION_SHARE_FACTOR * usual)

    def chunk(self, limits: GuardLimits) -> int:
        return 1 if self.single else max(1, getattr(limits, self.minimum) // MIN_COMMAND_CHUNKS)

    @property
    def level(self) -> float:
        return alarm_threshold(REPLIES_PER_ALARM if self.single else CHUNKS_PER_ALARM)


GUARDED_SHARES = (
    GuardedShare(
        'failed_replies',
        'answers',
        'failed_replies_percent',
        'minimum_replies',
        'requests of the candidate failed',
        single=True,
    ),
    GuardedShare(
        'trips',
        'commands',
        'trips_percent',
        'minimum_commands',
        'commands of the candidate were changed by the safety cage',
    ),
    GuardedShare(
        'fallbacks',
        'commands',
        'fallbacks_percent',
        'minimum_commands',
        'commands of the candidate came from the fallback ladder, not from a chunk',
    ),
)


def new_alarms() -> ShareAlarms:
    """Return an alarm for each kind, with nothing seen."""
    return ShareAlarms([kind.events for kind in GUARDED_SHARES])


def update_alarms(
    alarms: ShareAlarms, grown: Mapping[str, Mapping[str, int]], limits: GuardLimits
) -> None:
    """Take by how much the counters of both slots grew. The champion's come first."""
    for kind in GUARDED_SHARES:
        if not getattr(limits, kind.limit):
            continue
        events, total = (grown['champion'][name] for name in (kind.events, kind.total))
        usual = alarms.usual[kind.events]
        usual.add(events, max(events, total), getattr(limits, kind.minimum))
        events, total = (grown['candidate'][name] for name in (kind.events, kind.total))
        alarms.of[kind.events].add(
            events,
            max(events, total),
            bound=kind.bound(alarms, limits),
            chunk=kind.chunk(limits),
        )


def rollback_reason(facts: Facts, alarms: ShareAlarms, limits: GuardLimits) -> str:
    """Return why the candidate must take no more episodes, empty when it may."""
    failed, *others = (_sounds(kind, facts, alarms, limits) for kind in GUARDED_SHARES)
    return (
        failed
        or _slow(facts.candidate, facts.champion, limits)
        or next(filter(None, others), '')
        or _diverges(facts, limits.divergence)
    )


def not_ready_reason(name: str, slot: SlotFacts) -> str:
    """Return why the slot cannot be on trial, empty when it can."""
    if not slot.healthy:
        return f'the slot of the {name} is not healthy: {slot.health_text}'
    return '' if slot.policy else f'the policy of the {name} is not known yet'


def promotion_blocker(facts: Facts) -> str:
    """Return why not even an operator may promote; empty when one may."""
    reason = facts.missing or not_ready_reason('candidate', facts.candidate)
    policy = facts.candidate.policy
    if reason or policy != facts.champion.policy:
        return reason
    # a verdict on the candidate would bar both slots
    return f'both slots serve {policy}; load the candidate into its slot, or clear canary.plan'


def missing_data(facts: Facts, limits: GuardLimits) -> str:
    """Return what a whole step did not show, and what to do about it; empty when nothing."""
    return (
        _few_reported(facts)
        or _few_answers(facts, limits)
        or _few_commands(facts.candidate, limits)
        or _few_divergences(facts, limits.divergence)
    )


def percentage(part: float, whole: float) -> float:
    """Return percent; 0 of nothing is 0."""
    return 100 * part / whole if whole else 0.0


def _short(percent: float) -> str:
    return f'{percent:.1f}' if percent < 10 else f'{percent:.0f}'


def _sounds(kind: GuardedShare, facts: Facts, alarms: ShareAlarms, limits: GuardLimits) -> str:
    run = alarms.of[kind.events].strongest
    if not getattr(limits, kind.limit) or run.evidence < kind.level:
        return ''
    usual = 100 * alarms.usual[kind.events].share(getattr(limits, kind.minimum))
    oldest = f'; oldest action {facts.candidate.oldest_age_s:.2g} s'
    return (
        f'{run.events:.0f} of the last {run.count:.0f} {kind.words}: '
        f'{_short(percentage(run.events, run.count))} %, limit '
        f'{_short(100 * kind.bound(alarms, limits))} % (champion {_short(usual)} %)'
        f'{oldest if kind.events == "fallbacks" else ""}'
    )


def _slow(candidate: SlotFacts, champion: SlotFacts, limits: GuardLimits) -> str:
    limit = limits.latency_ratio
    if not limit or not _timed(candidate, limits) or not _timed(champion, limits):
        return ''
    bound_ms = limit * max(champion.latency_ms_p95, LATENCY_FLOOR_MS)
    if candidate.latency_ms_p95 <= bound_ms:
        return ''
    return (
        f'candidate latency p95 {candidate.latency_ms_p95:.0f} ms, champion '
        f'{champion.latency_ms_p95:.0f} ms; limit {bound_ms:.0f} ms ({limit:g}x)'
    )


def _timed(slot: SlotFacts, limits: GuardLimits) -> bool:
    return slot.answers >= limits.minimum_replies and not math.isnan(slot.latency_ms_p95)


def _diverges(facts: Facts, limit: float) -> str:
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


def _few_reported(facts: Facts) -> str:
    for name, slot in (('candidate', facts.candidate), ('champion', facts.champion)):
        if slot.reported < MIN_OUTCOMES:
            return (
                f'{slot.reported} of {slot.arm.begun} episodes of the {name} in this step have an '
                f'outcome, {MIN_OUTCOMES} are needed. Publish an EpisodeOutcome with '
                'SUCCESS or FAILURE for each episode'
            )
    return ''


def _few_answers(facts: Facts, limits: GuardLimits) -> str:
    if not limits.failed_replies_percent and not limits.latency_ratio:
        return ''
    if facts.candidate.answers < limits.minimum_replies:
        return (
            f'too few replies of the candidate in this step: {facts.candidate.answers} of '
            f'{limits.minimum_replies}'
        )
    for name, slot in (('candidate', facts.candidate), ('champion', facts.champion)):
        if limits.latency_ratio and not _timed(slot, limits):
            return f'too few replies of the {name} to measure its latency ({slot.answers})'
    return ''


def _few_commands(candidate: SlotFacts, limits: GuardLimits) -> str:
    if not limits.trips_percent and not limits.fallbacks_percent:
        return ''
    if candidate.commands >= limits.minimum_commands:
        return ''
    return (
        f'too few commands of the candidate in this step: {candidate.commands} of '
        f'{limits.minimum_commands}. Robots report executed actions with their requests '
        '(extension lerobot_serve.executed); if the number stays low, they send none. '
        'Limits of 0 % switch this guard off'
    )


def _few_divergences(facts: Facts, limit: float) -> str:
    enough = facts.divergence_samples >= MIN_DIVERGENCE_SAMPLES and not math.isnan(
        facts.divergence
    )
    if not limit or enough:
        return ''
    return (
        f'too few observations with a divergence: {facts.divergence_samples} of '
        f'{MIN_DIVERGENCE_SAMPLES}; check that a shadow runs. A limit of 0 switches this guard off'
    )
