"""
What rolls a canary back at once, and what holds it because it was not seen. Pure functions.

Counters are those since the step began. A guard needs enough of them: a share of three means
nothing. Whatever has a limit and was not seen often enough holds, for a canary that promotes on
missing data promotes a policy that nobody looked at. A limit of 0 switches a guard off, and with
it what would hold.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
import math

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.facts import Facts, SlotFacts

# a few may be one robot that was switched off
FAILED_LEAST = 5
# as many commands that were changed, or not from a chunk: one robot that is stuck is no bad policy
EVENTS_LEAST = 100
# below it the network's own jitter makes the ratio
LATENCY_FLOOR_MS = 5.0
# a share of the champion's is doubled before it is compared: both are noisy
CHAMPION_FACTOR = 2.0
DIVERGENCE_LEAST = 20
# enough to see that nobody reports; and what every step needs of both slots
ENDED_LEAST = REPORTED_LEAST = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Where a guard trips, 0 switches it off; and how much has to be seen before it can tell.

    The 95th percentile of 100 answers is the fifth largest; 3000 commands are 100 s of motion at
    30 Hz, several episodes.
    """

    failed_answers_percent: float = 2.0
    latency_ratio: float = 2.0
    trips_percent: float = 1.0
    fallbacks_percent: float = 5.0
    # in spreads of the champion itself
    divergence: float = 0.0
    minimum_reported_percent: float = 80.0
    minimum_answers: int = 100
    minimum_commands: int = 3000

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            high = 100.0 if entry.name.endswith('percent') else math.inf
            if not (math.isfinite(value) and 0 <= value <= high):
                allowed = 'in [0, 100]' if high == 100.0 else 'finite and at least 0'
                raise ParameterError(f'{entry.name} must be {allowed}, got {value!r}')


def tripped(facts: Facts, limits: Limits) -> str:
    """Return why the candidate must take no more episodes, empty when it may."""
    candidate, champion = facts.candidate, facts.champion
    return (
        _failed(candidate, limits.failed_answers_percent)
        or _slow(candidate, champion, limits)
        or _too_often('trips', facts, limits, limits.trips_percent)
        or _too_often('fallbacks', facts, limits, limits.fallbacks_percent)
        or _diverges(facts, limits.divergence)
    )


def not_ready(name: str, slot: SlotFacts) -> str:
    """Return why the slot cannot be on trial, empty when it can."""
    if not slot.healthy:
        return f'the slot of the {name} is not healthy: {slot.health_text}'
    return '' if slot.policy else f'the policy of the {name} is not known yet'


def unseen(facts: Facts, limits: Limits) -> str:
    """Return what a whole step did not show, and what to do about it; empty when nothing."""
    return (
        _few_reported(facts)
        or _few_answers(facts, limits)
        or _few_commands(facts.candidate, limits)
        or _few_divergences(facts, limits.divergence)
    )


def unreported(facts: Facts, limit_percent: float) -> str:
    """
    Return that too few episodes got a verdict, empty when enough did.

    What nobody reported may have been failures: the rest would be the survivors.
    """
    for name, slot in (('candidate', facts.candidate), ('champion', facts.champion)):
        percent = share(slot.reported, slot.ended)
        if slot.ended >= ENDED_LEAST and percent < limit_percent:
            return (
                f'only {percent:.0f} % of the {slot.ended} ended episodes of the {name} have a '
                f'verdict, at least {limit_percent:g} % are needed: those without one may be the '
                'failures. Somebody must publish an EpisodeOutcome with SUCCESS or FAILURE for '
                f'each episode ({_without_verdict(slot)})'
            )
    return ''


def too_long(facts: Facts, settle_s: float) -> str:
    """Return that episodes last longer than outcomes were left out, empty when they do not."""
    if facts.longest_episode_s <= settle_s:
        return ''
    return (
        f'an episode took {facts.longest_episode_s:.0f} s, but outcomes count from '
        f'{settle_s:.0f} s after the begin of a step: the short episodes came first and may have '
        'been the good ones. Let the canary settle for longer than the longest episode'
    )


def share(part: int, whole: int) -> float:
    """Return percent; 0 of nothing is 0."""
    return 100 * part / whole if whole else 0.0


def _short(percent: float) -> str:
    return f'{percent:.1f}' if percent < 10 else f'{percent:.0f}'


def _without_verdict(slot: SlotFacts) -> str:
    return f'{slot.unreported} unreported, {slot.aborted} aborted, {slot.moved} moved'


def _failed(candidate: SlotFacts, limit_percent: float) -> str:
    percent = share(candidate.failed_answers, candidate.answers)
    if not limit_percent or candidate.failed_answers < FAILED_LEAST or percent <= limit_percent:
        return ''
    return (
        f'{candidate.failed_answers} of {candidate.answers} answers of the candidate failed: '
        f'{_short(percent)} %, limit {limit_percent:g} %'
    )


def _slow(candidate: SlotFacts, champion: SlotFacts, limits: Limits) -> str:
    limit = limits.latency_ratio
    if not limit or not _timed(candidate, limits) or not _timed(champion, limits):
        return ''
    bound_ms = limit * max(champion.latency_ms_p95, LATENCY_FLOOR_MS)
    if candidate.latency_ms_p95 <= bound_ms:
        return ''
    return (
        f'the candidate is slow: 95 % of its answers within {candidate.latency_ms_p95:.0f} ms, '
        f'those of the champion within {champion.latency_ms_p95:.0f} ms; limit {bound_ms:.0f} ms, '
        f'{limit:g} times as long'
    )


def _timed(slot: SlotFacts, limits: Limits) -> bool:
    return slot.answers >= limits.minimum_answers and not math.isnan(slot.latency_ms_p95)


WORDS = {
    'trips': 'were changed by the safety cage',
    'fallbacks': 'came from the fallback ladder, not from a chunk',
}


def _too_often(kind: str, facts: Facts, limits: Limits, limit_percent: float) -> str:
    candidate, champion = facts.candidate, facts.champion
    events = getattr(candidate, kind)
    if not limit_percent or events < EVENTS_LEAST or candidate.commands < limits.minimum_commands:
        return ''
    usual = share(getattr(champion, kind), champion.commands)
    bound, percent = max(limit_percent, CHAMPION_FACTOR * usual), share(events, candidate.commands)
    if percent <= bound:
        return ''
    oldest = f'; oldest action {candidate.oldest_age_s:.2g} s' if kind == 'fallbacks' else ''
    return (
        f'{events} of {candidate.commands} commands of the candidate {WORDS[kind]}: '
        f'{_short(percent)} %, limit {_short(bound)} % (champion {_short(usual)} %){oldest}'
    )


def _diverges(facts: Facts, limit: float) -> str:
    if not limit or facts.divergence_samples < DIVERGENCE_LEAST or not facts.divergence > limit:
        return ''
    return (
        f'the candidate acts otherwise than the champion: {facts.divergence:.2g} of its spreads '
        f'apart over {facts.divergence_samples} observations, limit {limit:g}'
    )


def _few_reported(facts: Facts) -> str:
    for name, slot in (('candidate', facts.candidate), ('champion', facts.champion)):
        if slot.reported < REPORTED_LEAST:
            return (
                f'only {slot.reported} episodes of the {name} ended with a verdict in this step, '
                f'{REPORTED_LEAST} are needed'
            )
    return ''


def _few_answers(facts: Facts, limits: Limits) -> str:
    if not limits.failed_answers_percent and not limits.latency_ratio:
        return ''
    if facts.candidate.answers < limits.minimum_answers:
        return (
            f'only {facts.candidate.answers} answers of the candidate in this step, '
            f'{limits.minimum_answers} are needed'
        )
    for name, slot in (('candidate', facts.candidate), ('champion', facts.champion)):
        if limits.latency_ratio and not _timed(slot, limits):
            return f'too few answers of the {name} to tell its latency ({slot.answers})'
    return ''


def _few_commands(candidate: SlotFacts, limits: Limits) -> str:
    if not limits.trips_percent and not limits.fallbacks_percent:
        return ''
    if candidate.commands >= limits.minimum_commands:
        return ''
    return (
        f'only {candidate.commands} commands of robots with the candidate were seen in this step, '
        f'{limits.minimum_commands} are needed to tell how often the cage and the ladder act. If '
        'it stays so, the router does not hear ~/executed_action of the robots; limits of 0 % do '
        'without'
    )


def _few_divergences(facts: Facts, limit: float) -> str:
    enough = facts.divergence_samples >= DIVERGENCE_LEAST and not math.isnan(facts.divergence)
    if not limit or enough:
        return ''
    return (
        f'the divergence was measured on {facts.divergence_samples} observations only, '
        f'{DIVERGENCE_LEAST} are needed: is a shadow running? A limit of 0 does without'
    )
