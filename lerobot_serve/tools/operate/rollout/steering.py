# SPDX-License-Identifier: Apache-2.0
"""
What the verbs that steer a rollout or the split would do now. Pure functions, which the command
line and other programs of an operator share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lerobot_serve.contract.records import CanaryState, SlotState
from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.operate.commands import NEWER, rollout_rule, slot_rule
from lerobot_serve.tools.operate.fleet_state import CANDIDATE_SLOT, RouterView, waits_for_start
from lerobot_serve.tools.operate.names import resolve_slot
from lerobot_serve.tools.operate.rule import Effect, filled, refuse, Rule, SlotVerb, Verb

# of one command each
STEERING_VERBS = (Verb.PAUSE, Verb.RESUME, Verb.PROMOTE, Verb.ABORT, Verb.UNDO, Verb.STOP)
LIFTING = (Verb.RESUME, Verb.UNDO)
# as after damage of the state store
WAITS_FOR_BARRED = refuse(
    'slot b is barred, and its plan would begin as soon as that is lifted. Remove the plan with '
    '`lerobot-serve rollout stop`; then `lerobot-serve rollout resume` lifts the verdict alone'
)
LIMIT_PERCENT = 100
AT_ONCE = '; running episodes leave with their next request'
# returns the plan of the router, which is asked only by the verbs whose text depends on it
ReadPlan = Callable[[], CanaryPlan | None]


def steering_rule(
    verb: Verb, router: RouterView, read_plan: ReadPlan, *, at_once: bool = False
) -> Rule:
    """Return what a verb that steers a rollout would do."""
    if verb in LIFTING and is_barred(router) and router.canary.state is CanaryPhase.WAITING:
        return WAITS_FOR_BARRED
    if steered_slot(verb, router):
        rule = slot_rule(SlotVerb.LIFT, resolve_slot(CANDIDATE_SLOT, router))
    else:
        plan = read_plan() if verb is Verb.PROMOTE else None
        rule = rollout_rule(verb, router.canary, plan)
    return _followed_by(rule, AT_ONCE if at_once else '')


def steered_slot(verb: Verb, router: RouterView) -> str:
    """Return the slot that a verb concerns; empty: the rollout as a whole."""
    return CANDIDATE_SLOT if lifts_verdict_alone(verb, router) else ''


def slot_steering_rule(
    verb: SlotVerb, slot: SlotState, router: RouterView, read_plan: ReadPlan, *, at_once: bool
) -> Rule:
    """Return what a verb on a slot would do, with what follows for rollout and robots."""
    rule = slot_rule(verb, slot)
    if rule.effect is not Effect.DO:
        return rule
    if verb is SlotVerb.DRAIN:
        return _followed_by(rule, drain_consequence(slot.slot, router, at_once=at_once))
    if verb is SlotVerb.RESTORE:
        return _followed_by(rule, restore_consequence(router.canary, read_plan()))
    return rule


def drain_consequence(slot: str, router: RouterView, *, at_once: bool) -> str:
    """Return what a drain does beside keeping new episodes away; empty for nothing."""
    text = '; its running episodes leave with their next request' if at_once else ''
    canary = router.canary
    if slot == CANDIDATE_SLOT and canary.state in (*ON_TRIAL, CanaryPhase.WAITING):
        text += (
            '; the rollout waits until it is restored'
            if canary.state is CanaryPhase.WAITING
            else f'; the rollout of {canary.candidate_policy} is rolled back by it, and a verdict '
            'bars it'
        )
    if not any(other.share_percent for other in router.state.slots if other.slot != slot):
        text += (
            '; no other slot has a share: new episodes are refused, and robots without actions '
            'descend their fallback ladders'
        )
    return text


def restore_consequence(canary: CanaryState, plan: CanaryPlan | None) -> str:
    """Return that a rollout which waits begins by a restore; empty when none does."""
    if canary.state is not CanaryPhase.WAITING or waits_for_start(canary):
        return ''
    share = f' at {plan.steps[0].share_percent} % of new episodes' if plan else ''
    return (
        f'; the rollout of {canary.candidate_policy or "the candidate"} waits, and begins{share} '
        'as soon as both slots may take episodes; `lerobot-serve rollout stop` ends it'
    )


def split_refusal(canary: CanaryState) -> str:
    """Return why an operator may not set the split now; empty when one may."""
    if canary.state not in tuple(CanaryPhase):
        return filled(NEWER, state=canary.state.word).text
    if canary.state is not CanaryPhase.WAITING and canary.state not in ON_TRIAL:
        return ''
    return (
        f'a rollout sets the split ({canary.text}): use `lerobot-serve rollout promote` or '
        '`abort`, or end it with `lerobot-serve rollout stop`. Nothing was changed'
    )


def _followed_by(rule: Rule, text: str) -> Rule:
    return replace(rule, text=rule.text + text) if rule.effect is Effect.DO else rule


def lifts_verdict_alone(verb: Verb, router: RouterView) -> bool:
    """Return whether there is a verdict to lift and no plan to resume."""
    return verb in LIFTING and router.canary.state is CanaryPhase.OFF and is_barred(router)


def is_barred(router: RouterView) -> bool:
    candidate = router.slot(CANDIDATE_SLOT)
    return candidate is not None and candidate.state is SlotState.State.BARRED


def split_rule(router: RouterView, percent: int) -> Rule:
    """Return what setting the split would do. Raises UserError for a share out of range."""
    check_percent(percent)
    if router.slot('a') is None:
        text = f'{router.name} has one slot, so there is no split. Nothing was changed'
        return Rule(Effect.REFUSE, text)
    if refusal := split_refusal(router.canary):
        return Rule(Effect.REFUSE, refusal)
    text = split_text(percent)
    if router.state.split_percent == percent:
        return Rule(Effect.NOTHING, f'already {text}')
    return Rule(
        Effect.DO,
        f'give {text}; now {router.state.split_percent} % to slot a',
        'SET_SPLIT',
        asks=True,
    )


def check_percent(percent: int) -> None:
    """Raise WrongCommandLine for a share out of range, before anything is looked for."""
    if not 0 <= percent <= LIMIT_PERCENT:
        raise WrongCommandLine(f'PERCENT must be in [0, {LIMIT_PERCENT}], got {percent}')


def split_text(percent: int) -> str:
    return f'{percent} % of new episodes to slot a, {LIMIT_PERCENT - percent} % to slot b'
