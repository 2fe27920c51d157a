# SPDX-License-Identifier: Apache-2.0
"""
The commands of an operator: what each does in each state, and where it makes no sense.

The tables are in rollout_rules and slot_rules; each has every verb in every state. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from lerobot_serve.contract.records import CanaryState, SlotState
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.operate import silent_robots
from lerobot_serve.tools.operate.fleet_state import (
    RobotView,
    waits_for_start,
)
from lerobot_serve.tools.operate.rollout.rollout_rules import OTHER_POLICY_RULES, ROLLOUT_RULES
from lerobot_serve.tools.operate.rule import (
    Effect,
    filled,
    refuse,
    RobotVerb,
    Rule,
    SlotVerb,
    Verb,
)
from lerobot_serve.tools.operate.slot_rules import ROBOT_RULES, SLOT_RULES

NEWER = refuse(
    'the router is in the state {state}, which this version of lerobot-serve does not know: run '
    'the verb with the version of the router'
)


def rollout_rule(verb: Verb, canary: CanaryState, plan: CanaryPlan | None = None) -> Rule:
    """
    Return the rule of a verb for a canary, with its text filled in; `plan` is that of the router.
    """
    if canary.state not in tuple(CanaryPhase):
        return filled(NEWER, state=canary.state.word)
    rules = OTHER_POLICY_RULES if waits_for_start(canary) else None
    rule = rules[verb] if rules else ROLLOUT_RULES[verb, canary.state]
    if rule.command == 'CANARY_PROMOTE':
        rule = replace(rule, step=canary.step)
    return filled(
        rule,
        candidate=canary.candidate_policy or 'the candidate',
        share_percent=canary.share_percent,
        next_share=_next_share(canary, plan),
        step_number=canary.step + 1,
        step_count=canary.step_count,
        text=canary.text,
        # without its counts, which change all the time: a person confirms this sentence
        watched='; it is still watched' if canary.is_watched else '',
    )


def _next_share(canary: CanaryState, plan: CanaryPlan | None) -> str:
    """Return the share of the next step in words."""
    if canary.step + 2 >= canary.step_count:
        return '100 % of all new episodes, its last step,'
    if plan and canary.step + 1 < len(plan.steps):
        return f'{plan.steps[canary.step + 1].share_percent} % of new episodes'
    return 'the share of the next step'


def slot_rule(verb: SlotVerb, slot: SlotState) -> Rule:
    """Return the rule of a verb for a slot, with its text filled in."""
    rule = SLOT_RULES.get((verb, slot.state.name))
    if rule is None:
        return filled(NEWER, state=f'slot {slot.slot} {slot.state.name}')
    return filled(
        rule,
        slot=slot.slot,
        policy=slot.policy or 'no policy yet',
        share_percent=slot.share_percent,
        text=slot.text,
    )


def robot_rule(verb: RobotVerb, robot: RobotView) -> Rule:
    """
    Return the rule of a verb for a robot, with its text filled in. A silent one refuses what may
    start motion; still send a pause: a silent robot may be receiving.
    """
    if robot.is_silent and verb is not RobotVerb.PAUSE:
        return Rule(Effect.REFUSE, silent_robots.refusal(robot))
    # the last state of a silent robot is old: its pause may have ended
    paused = robot.edge.paused and not robot.is_silent
    rule = ROBOT_RULES[verb, paused]
    return filled(rule, name=robot.name, state=robot.state, reason=robot.edge.reason)
