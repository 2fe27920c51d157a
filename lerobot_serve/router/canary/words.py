"""What a canary tells a person. Pure functions."""

from __future__ import annotations

import math

from lerobot_serve.router.canary.evidence import Counts
from lerobot_serve.router.canary.facts import Facts, SlotFacts
from lerobot_serve.router.canary.forecast import (
    EPISODES_LEAST,
    EPISODES_LIMIT,
    episodes_to_decide,
)
from lerobot_serve.router.canary.guards import share
from lerobot_serve.router.canary.plan import Plan, Terms


def counts(slot: SlotFacts) -> Counts:
    """Return the outcomes that are compared."""
    return Counts(slot.successes, slot.failures)


def where(plan: Plan, step: int) -> str:
    """Return which step this is."""
    percent = plan.steps[step].share_percent
    return f'step {step + 1} of {len(plan.steps)}, {percent} % of new episodes to the candidate'


def rates(facts: Facts) -> str:
    """Return how often each policy succeeded in this step."""
    return f'candidate {_rate(facts.candidate)}, champion {_rate(facts.champion)}'


def gathering(plan: Plan, step: int, facts: Facts, time_s: float, settle_left_s: float) -> str:
    """Return how far the step's minimums are met."""
    least = plan.steps[step]
    parts = [
        f'{facts.candidate.reported} of {least.minimum_episodes} episodes of the candidate',
        f'{_minutes(min(time_s, least.minimum_s))} of {_minutes(least.minimum_s)} min',
    ]
    if settle_left_s > 0:
        parts.append(f'outcomes count in {settle_left_s:.0f} s')
    return f'{where(plan, step)}: {", ".join(parts)}; {rates(facts)}'


def undecided(plan: Plan, step: int, facts: Facts, terms: Terms) -> str:
    """Return that more episodes are needed, and about how many."""
    return f'undecided: {rates(facts)}. {_forecast(plan, step, facts, terms)}'


def passed(facts: Facts, terms: Terms) -> str:
    """Return what the comparison has shown."""
    return (
        f'not worse by {_points(terms.margin)} or more: {rates(facts)}; wrong in at most '
        f'{100 * terms.false_promotion:g} % of such canaries'
    )


def is_worse(facts: Facts, terms: Terms) -> str:
    """Return why the comparison rolls back."""
    return (
        f'the candidate is worse than the champion: {rates(facts)}; wrong in at most '
        f'{100 * terms.false_rollback:g} % of canaries whose candidate is not'
    )


def one_line(reason: str, limit: int) -> str:
    """Return an operator's words as one line of bounded length."""
    return ' '.join(reason.split())[:limit] or 'no reason given'


def _forecast(plan: Plan, step: int, facts: Facts, terms: Terms) -> str:
    if min(facts.candidate.reported, facts.champion.reported) < EPISODES_LEAST:
        return 'Too few episodes to say how many more are needed'
    percent = plan.steps[step].share_percent
    forecast = episodes_to_decide(
        counts(facts.champion),
        counts(facts.candidate),
        share_percent=percent,
        terms=terms,
        trials=len(plan.trials),
    )
    if forecast is None:
        return (
            f'If the rates stay so, {EPISODES_LIMIT} more episodes of the candidate will not '
            f'decide it with a margin of {_points(terms.margin)}: promote or roll back by hand'
        )
    what = 'promoted' if forecast.promoted else 'rolled back'
    return (
        f'About {_about(forecast.episodes)} more episodes of the candidate '
        f'({_about(forecast.episodes * 100 / percent)} of both) until it is {what}, if the rates '
        'stay so'
    )


def _rate(slot: SlotFacts) -> str:
    if not slot.reported:
        return 'without an outcome'
    return f'{share(slot.successes, slot.reported):.0f} % of {slot.reported}'


def _points(margin: float) -> str:
    return f'{100 * margin:g} percentage points'


def _minutes(seconds: float) -> str:
    return f'{seconds / 60:.3g}'


def _about(number: float) -> str:
    """Return two significant digits: more would claim too much."""
    size = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return str(math.ceil(number / size) * size)
