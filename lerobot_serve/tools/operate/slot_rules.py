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
SLOT_RULES: dict[tuple[SlotVerb, str], Rule] = {
    (SlotVerb.DRAIN, 'HEALTHY'): DRAIN,
    (SlotVerb.DRAIN, 'DRAINED'): nothing('slot {slot} is drained already: {text}'),
    (SlotVerb.DRAIN, 'PROBING'): DRAIN,
    (SlotVerb.DRAIN, 'UNAVAILABLE'): DRAIN,
    (SlotVerb.DRAIN, 'BARRED'): DRAIN,
    (SlotVerb.DRAIN, 'UNQUALIFIED'): DRAIN,
    (SlotVerb.RESTORE, 'HEALTHY'): nothing('slot {slot} is healthy'),
    (SlotVerb.RESTORE, 'DRAINED'): RESTORE,
    (SlotVerb.RESTORE, 'PROBING'): RESTORE,
    (SlotVerb.RESTORE, 'UNAVAILABLE'): refuse(
        'slot {slot} is not drained: {text}. Start its policy servers'
    ),
    # the state does not show a drain beside a verdict
    (SlotVerb.RESTORE, 'BARRED'): RESTORE,
    (SlotVerb.LIFT, 'HEALTHY'): NOT_BARRED,
    (SlotVerb.LIFT, 'DRAINED'): NOT_BARRED,
    (SlotVerb.LIFT, 'PROBING'): NOT_BARRED,
    (SlotVerb.LIFT, 'UNAVAILABLE'): NOT_BARRED,
    (SlotVerb.LIFT, 'BARRED'): LIFT,
    (SlotVerb.LIFT, 'UNQUALIFIED'): NOT_BARRED,
    (SlotVerb.RESTORE, 'UNQUALIFIED'): refuse('slot {slot} is not drained: {text}'),
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
