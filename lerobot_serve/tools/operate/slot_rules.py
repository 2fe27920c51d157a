# SPDX-License-Identifier: Apache-2.0
"""
What each verb on a slot does in each of its states, and on a robot that is paused or not. Pure.
"""

from __future__ import annotations

from lerobot_serve.tools.operate.rule import Effect, nothing, refuse, RobotVerb, Rule, SlotVerb

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
Row = dict[tuple[SlotVerb, str], Rule]


def row(verb: SlotVerb, rule: Rule, *states: str) -> Row:
    """Return the rules of a verb for the states in which it does the same."""
    return {(verb, state): rule for state in states}


SLOT_RULES: Row = {
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
