# SPDX-License-Identifier: Apache-2.0
"""Build the status texts of a canary. Pure functions."""

from __future__ import annotations

import math

from lerobot_serve.router.canary.evidence.forecast import (
    episodes_to_decide,
    MAX_FORECAST_EPISODES,
    MIN_FORECAST_EPISODES,
)
from lerobot_serve.router.canary.evidence.trial import StepTrial
from lerobot_serve.router.canary.facts import (
    Facts,
    not_ready_reason,
    percentage,
    SlotFacts,
    TEXT_LIMIT,
)
from lerobot_serve.router.canary.guards.halts import halt_text, HaltVerdict
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.router.canary.watch import Champion, ended, WatchRecord
from lerobot_serve.router.parameters import RouterParameters

# share of episodes without an outcome from which the text reports them
REPORTED_LOSS_SHARE = 0.02
# factor from which the text reports runs of failures
REPORTED_RUNS = 1.5
TIME_UNITS = ((3600, 'h'), (60, 'min'), (1, 's'))


def step_text(plan: CanaryPlan, step: int) -> str:
    """Return the number and the share of a step."""
    percent = plan.steps[step].share_percent
    return f'step {step + 1} of {len(plan.steps)}, {percent} % of new episodes to the candidate'


def rates_text(facts: Facts) -> str:
    """Return the success rate of each policy in this step."""
    return f'candidate {_rate(facts.candidate)}, champion {_rate(facts.champion)}'


def progress_text(plan: CanaryPlan, step: int, facts: Facts, time_s: float) -> str:
    """Return the progress towards the minimums of a step."""
    least = plan.steps[step]
    episodes = _counted(facts.candidate.reported, least.minimum_episodes)
    time = f', {_time(time_s, least.minimum_s)}' if least.minimum_s else ''
    return (
        f'{step_text(plan, step)}: {episodes} episodes of the candidate{time}; {rates_text(facts)}'
    )


def undecided_text(
    plan: CanaryPlan, step: int, facts: Facts, rules: RouterParameters, trial: StepTrial
) -> str:
    """Return the rates, episodes without outcome, and the forecast of remaining episodes."""
    forecast = _forecast(plan, step, facts, rules, trial)
    parts = (rates_text(facts), _missing_outcomes_text(facts), _runs_text(trial), forecast)
    return '. '.join(filter(None, parts))


def with_halts(text: str, facts: Facts, limits: RouterParameters) -> str:
    """Return a text, with the robots that wait for a person."""
    return '. '.join(filter(None, (text, halt_text(facts, limits, HaltVerdict.REPORT))))


def aborts_text(facts: Facts) -> str:
    """Return that the champion's episodes are aborted more often, with the remedy."""
    candidate, champion = facts.candidate.arm, facts.champion.arm
    return (
        'episodes of the champion are aborted more often than those of the candidate '
        f'({champion.aborted} of {champion.begun}, {candidate.aborted} of {candidate.begun}): '
        'an aborted episode is not a success, so that this alone favors the candidate. Find the '
        'cause, then promote or roll back by hand'
    )


def passed_text(facts: Facts, rules: RouterParameters) -> str:
    """Return the result of a passed comparison."""
    return (
        f'not worse by {_points(rules.canary_margin)} or more: {rates_text(facts)}; wrong in at '
        f'most {100 * rules.canary_false_promotion:g} % of such canaries'
    )


def worse_text(facts: Facts, rules: RouterParameters) -> str:
    """Return the result of a comparison that rolls back."""
    return (
        f'the candidate is worse than the champion: {rates_text(facts)}; wrong in at most '
        f'{100 * rules.canary_false_rollback:g} % of canaries with a candidate that is not worse'
    )


def watch_text(watch: WatchRecord, facts: Facts, time_ns: int, minimum: RouterParameters) -> str:
    """Return the progress of a watch, and the success rates that it compares."""
    episodes = _counted(ended(facts.candidate.arm), minimum.canary_watch_episodes)
    time = _time(time_ns / 1e9, minimum.canary_watch_hours * 3600)
    text = f'watched for {episodes} episodes and {time}; {_watched_rates(watch, facts)}'
    replaced = _replaced_text(watch, facts.champion)
    return f'{text}. It does not end while {replaced}: {_back_text(watch)}' if replaced else text


def worse_since_text(watch: WatchRecord, facts: Facts, rules: RouterParameters) -> str:
    """Return the result of a watch that rolls back."""
    return (
        f'since its promotion the candidate is worse by more than {_points(rules.canary_margin)}: '
        f'{_watched_rates(watch, facts)}; wrong in at most '
        f'{100 * rules.canary_false_rollback:g} % of promotions'
    )


def no_way_back_text(reason: str, watch: WatchRecord, champion: SlotFacts) -> str:
    """Return why a candidate continues that would be rolled back, with the remedy."""
    replaced = _replaced_text(watch, champion)
    why = replaced or not_ready_reason('champion', champion)
    remedy = _back_text(watch) if replaced else 'start its policy server'
    return (
        f'{reason}. It continues, because {why}. As soon as the champion is back it takes over: '
        f'{remedy}'
    )


def _replaced_text(watch: WatchRecord, champion: SlotFacts) -> str:
    """Return what slot a serves instead of the champion; empty if it does not."""
    if watch.champion_state(champion) is not Champion.REPLACED:
        return ''
    return f'slot a serves {champion.policy} instead of {watch.champion}'


def _back_text(watch: WatchRecord) -> str:
    return (
        f'put {watch.champion} back (`lerobot-serve swap`), or `lerobot-serve rollout finish`, '
        'rollback or stop'
    )


def by_operator(reason: str) -> str:
    """Return who caused a change, as a reason."""
    return f'by an operator: {_one_line(reason)}'


def authored(text: str, by: str) -> str:
    """Return a text with who caused it, if that is known."""
    return f'{text}; by: {_one_line(by)}' if by else text


def _one_line(reason: str) -> str:
    """Return the reason of an operator as one line of bounded length."""
    return ' '.join(reason.split())[: TEXT_LIMIT // 2] or 'no reason given'


def _missing_outcomes_text(facts: Facts) -> str:
    """Return the number of episodes without an outcome; empty below REPORTED_LOSS_SHARE."""
    slots = (('candidate', facts.candidate.arm), ('champion', facts.champion.arm))
    parts = [
        f'{arm.moved + arm.unreported} of {arm.begun} of the {name} ({arm.unreported} unreported, '
        f'{arm.moved} moved)'
        for name, arm in slots
        if arm.moved + arm.unreported > REPORTED_LOSS_SHARE * arm.begun
    ]
    if not parts:
        return ''
    return (
        f'Episodes without an outcome: {", ".join(parts)}. Each counts against the candidate; '
        'publish an EpisodeOutcome for every episode'
    )


def _runs_text(trial: StepTrial) -> str:
    """Return how far failures come in runs of one robot; empty below REPORTED_RUNS."""
    factor = trial.rollback_factor
    if factor < REPORTED_RUNS:
        return ''
    return (
        'Episodes of one robot fail in runs, for one reason: it takes about '
        f'{factor:.1f} times the episodes; `lerobot-serve history` shows them by robot'
    )


def _forecast(
    plan: CanaryPlan, step: int, facts: Facts, rules: RouterParameters, trial: StepTrial
) -> str:
    if min(facts.candidate.reported, facts.champion.reported) < MIN_FORECAST_EPISODES:
        return 'Too few episodes for a forecast'
    percent = plan.steps[step].share_percent
    forecast = episodes_to_decide(
        trial, share_percent=percent, rules=rules, trials=len(plan.trials)
    )
    if forecast is None:
        return (
            f'At the present rates, {MAX_FORECAST_EPISODES} more episodes of the candidate do not '
            f'decide with a margin of {_points(rules.canary_margin)}: promote or roll back by hand'
        )
    decision = 'promotion' if forecast.promoted else 'rollback'
    of_candidate = _round_up(forecast.episodes)
    of_both = _round_up(forecast.episodes * 100 / percent)
    return (
        f'At the present rates, about {of_candidate} more episodes of the candidate ({of_both} of '
        f'both) until {decision}'
    )


def _watched_rates(watch: WatchRecord, facts: Facts) -> str:
    successes, failures = watch.champion_counts(facts.champion.arm)
    known = (
        f'{percentage(successes, successes + failures):.0f} % of {successes + failures}'
        if successes + failures
        else 'no outcome'
    )
    return f'candidate {_rate(facts.candidate)}, champion before {known}'


def _counted(count: int, least: int) -> str:
    """Return the progress towards a minimum, at most the minimum."""
    return f'{min(count, least)} of {least}'


def _time(seconds: float, least_s: float) -> str:
    """Return the progress towards a minimum time, in a unit that suits the minimum."""
    size_s, unit = next(row for row in TIME_UNITS if least_s >= 2 * row[0] or row[0] == 1)
    done = math.floor(10 * min(seconds, least_s) / size_s) / 10
    return f'{done:g} of {least_s / size_s:.3g} {unit}'


def _rate(slot: SlotFacts) -> str:
    arm = slot.arm
    ended = slot.reported + arm.aborted
    if not ended:
        return 'no outcome'
    aborted = f' ({arm.aborted} aborted)' if arm.aborted else ''
    return f'{percentage(arm.success, ended):.0f} % of {ended}{aborted}'


def _points(margin: float) -> str:
    return f'{100 * margin:g} percentage points'


def _round_up(number: float) -> str:
    """Return the number rounded up to two significant digits."""
    size = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return str(math.ceil(number / size) * size)
