# SPDX-License-Identifier: Apache-2.0
"""
The commands of an operator: what each does in each state, and where it makes no sense. Each table
has every verb in every state. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from lerobot_serve.contract.records import CanaryState, SlotState
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.operate import fleet_state
from lerobot_serve.tools.operate.fleet_state import RobotView, waits_for_start
from lerobot_serve.tools.operate.rule import (
    Effect,
    filled,
    nothing,
    refuse,
    RobotVerb,
    Rule,
    SlotVerb,
    Verb,
)

VerbT = TypeVar('VerbT')
StateT = TypeVar('StateT')
PHASE = CanaryPhase
NONE_RUNS = 'no rollout runs; start one with `lerobot-serve rollout start`'
ABORTS = '`lerobot-serve rollout abort` gives all new episodes to slot a'
RESUME_BARRED = Rule(
    Effect.DO,
    'lift the verdict on {candidate}; the rollout starts again at its first step with all counts '
    'at 0',
    'CANARY_RESUME',
    ('WAITING', 'RUNNING', 'UNDECIDED'),
    asks=True,
)
RESUME_PAUSED = Rule(
    Effect.DO,
    'continue the rollout of {candidate} at {share_percent} %',
    'CANARY_RESUME',
    ('RUNNING', 'UNDECIDED', 'PROMOTED', 'ROLLED_BACK'),
)
PAUSE = Rule(
    Effect.DO,
    'keep {candidate} at {share_percent} %; guards and the comparison still roll back',
    'CANARY_PAUSE',
    ('PAUSED',),
)
PROMOTE = Rule(
    Effect.DO,
    'give {candidate} {next_share} (now step {step_number} of {step_count}, {share_percent} %) '
    'without waiting for the comparison',
    'CANARY_PROMOTE',
    # the step changes, too; see operations.confirms
    ('RUNNING', 'UNDECIDED', 'PAUSED', 'PROMOTED'),
    asks=True,
)
ABORT = Rule(
    Effect.DO,
    'roll back {candidate}: all new episodes to slot a; it drives no robot until a person lifts '
    'the verdict',
    'CANARY_ROLLBACK',
    ('ROLLED_BACK',),
    asks=True,
)
STOP = Rule(
    Effect.DO,
    'remove the plan and give all new episodes to slot a, without a verdict on {candidate}',
    asks=True,
)
START = Rule(Effect.DO, 'start a rollout', asks=True)
FINISH = Rule(
    Effect.DO,
    'load {candidate} into each server of slot a, one by one, while slot b serves; then all new '
    'episodes to slot a, and the plan is removed. No champion is left to go back to{watched}',
    asks=True,
)


RUNS = refuse(
    'a rollout of {candidate} has begun ({text}); end it first: `lerobot-serve rollout stop` '
    'without a verdict, `lerobot-serve rollout abort` to bar its policy'
)
NOT_PAUSED = nothing('the rollout is not paused: {text}')
NOT_UNDONE = refuse('a step is not undone; ' + ABORTS)
NOT_PROMOTED = refuse('{candidate} is not promoted: {text}')


def row(verb: VerbT, rule: Rule, *states: StateT) -> dict[tuple[VerbT, StateT], Rule]:
    """Return the rules of a verb for the states in which it does the same."""
    return {(verb, state): rule for state in states}


ROLLOUT_RULES: dict[tuple[Verb, CanaryPhase], Rule] = {
    **row(Verb.START, START, PHASE.OFF, PHASE.ROLLED_BACK),
    **row(Verb.START, RUNS, PHASE.WAITING, *ON_TRIAL),
    (Verb.START, PHASE.PROMOTED): refuse(
        '{candidate} is promoted and serves all episodes; make it the champion first with '
        '`lerobot-serve rollout finish`'
    ),
    (Verb.PAUSE, PHASE.OFF): refuse(NONE_RUNS),
    (Verb.PAUSE, PHASE.WAITING): refuse(
        '{candidate} gets no episodes yet: {text}. ' + ABORTS + ' and ends the wait'
    ),
    **row(Verb.PAUSE, PAUSE, PHASE.RUNNING, PHASE.UNDECIDED),
    (Verb.PAUSE, PHASE.PAUSED): nothing('{text}'),
    (Verb.PAUSE, PHASE.PROMOTED): refuse('{candidate} is promoted already; ' + ABORTS),
    (Verb.PAUSE, PHASE.ROLLED_BACK): refuse('{text}'),
    (Verb.RESUME, PHASE.OFF): refuse(NONE_RUNS),
    **row(Verb.RESUME, NOT_PAUSED, PHASE.WAITING, PHASE.RUNNING, PHASE.UNDECIDED),
    (Verb.RESUME, PHASE.PAUSED): RESUME_PAUSED,
    (Verb.RESUME, PHASE.PROMOTED): nothing('{candidate} is promoted already'),
    (Verb.RESUME, PHASE.ROLLED_BACK): RESUME_BARRED,
    (Verb.PROMOTE, PHASE.OFF): refuse(NONE_RUNS),
    (Verb.PROMOTE, PHASE.WAITING): refuse('{candidate} may take no episodes yet: {text}'),
    **row(Verb.PROMOTE, PROMOTE, *ON_TRIAL),
    (Verb.PROMOTE, PHASE.PROMOTED): nothing('{text}'),
    (Verb.PROMOTE, PHASE.ROLLED_BACK): refuse(
        '{text}. To try it again: `lerobot-serve rollout resume`'
    ),
    (Verb.ABORT, PHASE.OFF): refuse(
        'no rollout runs; to take a policy off the robots: `lerobot-serve drain b` or '
        '`lerobot-serve drain a`'
    ),
    **row(Verb.ABORT, ABORT, PHASE.WAITING, *ON_TRIAL, PHASE.PROMOTED),
    (Verb.ABORT, PHASE.ROLLED_BACK): nothing('{text}'),
    (Verb.UNDO, PHASE.OFF): refuse(NONE_RUNS),
    (Verb.UNDO, PHASE.WAITING): refuse('nothing to undo; ' + ABORTS),
    **row(Verb.UNDO, NOT_UNDONE, PHASE.RUNNING, PHASE.UNDECIDED),
    (Verb.UNDO, PHASE.PAUSED): RESUME_PAUSED,
    (Verb.UNDO, PHASE.PROMOTED): refuse('a promotion is not undone step by step; ' + ABORTS),
    (Verb.UNDO, PHASE.ROLLED_BACK): RESUME_BARRED,
    (Verb.STOP, PHASE.OFF): nothing('no rollout runs'),
    # of one that is rolled back the verdict that bars it stays
    **row(Verb.STOP, STOP, PHASE.WAITING, *ON_TRIAL, PHASE.PROMOTED, PHASE.ROLLED_BACK),
    (Verb.FINISH, PHASE.OFF): refuse('no policy is promoted: ' + NONE_RUNS),
    **row(Verb.FINISH, NOT_PROMOTED, PHASE.WAITING, *ON_TRIAL, PHASE.ROLLED_BACK),
    (Verb.FINISH, PHASE.PROMOTED): FINISH,
}
# slot b serves another policy than the one of the plan: the rules that differ from WAITING
OTHER_POLICY_RULES: dict[Verb, Rule] = {
    **{verb: ROLLOUT_RULES[verb, PHASE.WAITING] for verb in Verb},
    Verb.START: START,
    Verb.RESUME: refuse('{text}'),
    Verb.PROMOTE: refuse('{text}'),
    Verb.UNDO: refuse('{text}'),
}


DRAIN = Rule(
    Effect.DO,
    'give slot {slot} ({policy}, {share_percent} % now) no new episodes until '
    '`lerobot-serve restore {slot}`',
    'DRAIN',
    ('DRAINED', 'BARRED'),
    asks=True,
)
RESTORE = Rule(
    Effect.DO,
    'let slot {slot} ({policy}) receive new episodes again; its failures are forgotten',
    'RESTORE',
    ('HEALTHY', 'PROBING', 'UNAVAILABLE', 'BARRED', 'UNQUALIFIED'),
    asks=True,
)
LIFT = Rule(
    Effect.DO,
    'lift the verdict that bars {policy} in slot {slot}; no rollout begins, and it may receive '
    'episodes by the split',
    'LIFT_VERDICT',
    ('HEALTHY', 'DRAINED', 'PROBING', 'UNAVAILABLE', 'UNQUALIFIED'),
    asks=True,
)
NOT_BARRED = refuse('no rollout runs, and no verdict bars slot {slot}')
SLOT_RULES: dict[tuple[SlotVerb, str], Rule] = {
    **row(SlotVerb.DRAIN, DRAIN, 'HEALTHY', 'PROBING', 'UNAVAILABLE', 'BARRED', 'UNQUALIFIED'),
    (SlotVerb.DRAIN, 'DRAINED'): nothing('slot {slot} is drained already: {text}'),
    (SlotVerb.RESTORE, 'HEALTHY'): nothing('slot {slot} is healthy'),
    # BARRED: the state does not show a drain beside a verdict
    **row(SlotVerb.RESTORE, RESTORE, 'DRAINED', 'PROBING', 'BARRED'),
    (SlotVerb.RESTORE, 'UNAVAILABLE'): refuse(
        'slot {slot} is not drained: {text}. Start its policy servers'
    ),
    (SlotVerb.RESTORE, 'UNQUALIFIED'): refuse('slot {slot} is not drained: {text}'),
    **row(
        SlotVerb.LIFT, NOT_BARRED, 'HEALTHY', 'DRAINED', 'PROBING', 'UNAVAILABLE', 'UNQUALIFIED'
    ),
    (SlotVerb.LIFT, 'BARRED'): LIFT,
}
# verb and whether the robot is paused
ROBOT_RULES: dict[tuple[RobotVerb, bool], Rule] = {
    (RobotVerb.PAUSE, False): Rule(Effect.DO, 'slow {name} down to rest and hold it there'),
    (RobotVerb.PAUSE, True): nothing('{name} is paused already'),
    (RobotVerb.RESUME, False): nothing('{name} is not paused ({state}: {reason})'),
    (RobotVerb.RESUME, True): Rule(
        Effect.DO, 'end the pause of {name}: it may move at once', asks=True
    ),
    (RobotVerb.RESET, False): Rule(
        Effect.DO, 'start an episode of {name}, and lift a stop: it may move at once', asks=True
    ),
    (RobotVerb.RESET, True): Rule(
        Effect.DO, 'lift a stop of {name}; its next episode starts when it is resumed'
    ),
    (RobotVerb.RESET_CAGE, False): Rule(
        Effect.DO, 'clear the latch of the safety cage of {name}: it may move at once', asks=True
    ),
    (RobotVerb.RESET_CAGE, True): Rule(
        Effect.DO, 'clear the latch of the safety cage of {name}; it stays paused'
    ),
    (RobotVerb.TAKE_OVER, False): Rule(
        Effect.DO,
        'let a person command {name} instead of the policy: it follows their device at once',
        asks=True,
    ),
    (RobotVerb.TAKE_OVER, True): Rule(
        Effect.DO,
        'let a person command {name}, which is paused: it follows their device after `resume`',
    ),
    (RobotVerb.HAND_BACK, False): Rule(
        Effect.DO, 'let the policy command {name} again: it may move at once', asks=True
    ),
    (RobotVerb.HAND_BACK, True): Rule(Effect.DO, 'end the takeover of {name}; it stays paused'),
}


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
        return Rule(Effect.REFUSE, fleet_state.refusal(robot))
    # the last state of a silent robot is old: its pause may have ended
    paused = robot.edge.paused and not robot.is_silent
    rule = ROBOT_RULES[verb, paused]
    return filled(rule, name=robot.name, state=robot.state, reason=robot.edge.reason)
