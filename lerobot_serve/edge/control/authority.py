# SPDX-License-Identifier: Apache-2.0
"""
Control authority: which part commands the robot in a control step, and which motion it may make.

Pure: no clock, no lock, no state. Everything that affects it (operator, episode, connection, cage
latch, stop by service, teardown, interlock, intervention) is an input; each control step evaluates
the table and makes no motion beyond the grant. The first rule that applies decides, in this order:

    rule            authority  what it may do
    latched         none       slow down to rest, then nothing: only ~/reset_cage ends it
    stopped         none       slow down to rest, then nothing: only ~/reset ends it
    paused          operator   slow down to rest, then hold, or nothing if silent while paused:
                               only ~/resume ends it
    person          person     move the robot, until ~/hand_back
    no_episode      none       slow down to rest, then hold
    person_lost     ladder     the current rung: a person has taken over and does not command
    given_up, and nothing was ever played
                    teardown   slow down to rest, then nothing: no policy moved it
    nothing played  ladder     slow down to rest, then nothing: as above
    given_up        teardown   the teardown's motion, if any; nothing after it
    fresh           policy     play
    empty           ladder     the current rung

From silence (no command since the position was last known) only a policy, an intervention or an
interlock starts: a hold, a ladder or a teardown without a last command stays silent.

Interlocks act in every state: where a rule allows a command the cage overrides their actions in
it; where no rule allows a command, only active interlocks command.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import auto, Enum
from typing import NamedTuple

from lerobot_serve.edge.session.connection import ConnectionState


class ControlAuthority(Enum):
    """The part that may move the robot in a control step; the values of ExecutedAction.source."""

    POLICY = 0
    PERSON = 1
    LADDER = 2
    INTERLOCK = 3
    TEARDOWN = 4
    OPERATOR = 5
    # no episode runs, or a reset is required
    NONE = 6


class AllowedMotion(Enum):
    """The motion that a grant allows."""

    # no command at all
    NONE = auto()
    # the last commanded positions, velocities at zero
    HOLD = auto()
    # moving joints slow down to rest; no joint accelerates or starts
    SLOW_DOWN = auto()
    # the target of the policy or of the intervention
    PLAY = auto()
    # the rungs of the ladder
    FALL_BACK = auto()
    # the rungs of the teardown
    TEARDOWN = auto()
    # the actions that interlocks override; everything else holds
    INTERLOCK = auto()


class JointMotion(Enum):
    """The motion of the last command."""

    # no command: the position has to be measured first
    SILENT = auto()
    AT_REST = auto()
    MOVING = auto()


class ActionSupply(Enum):
    """Whether a fresh action is available in this step."""

    FRESH = auto()
    EMPTY = auto()
    # none now, and none executed since the robot was silent
    NEVER = auto()


class TeardownState(Enum):
    """State of the teardown of a robot whose connection is DEAD."""

    HOLD = auto()
    PENDING = auto()
    FINISHED = auto()


class Intervention(Enum):
    """
    Whether a person commands the robot directly, for example with a leader arm; the values of
    EdgeState.intervention.
    """

    NONE = 0
    COMMANDING = 1
    # a person has taken over, and deadman or commands are missing
    LOST = 2


class OperatingConditions(NamedTuple):
    """Conditions that are set outside of the control step."""

    paused: bool = False
    # an episode runs, or the teardown of one that ended with DEAD
    running: bool = True
    state: ConnectionState = ConnectionState.STREAMING
    intervention: Intervention = Intervention.NONE

    @property
    def has_policy_beside_person(self) -> bool:
        """Whether a person has taken over, and the policy continues planning."""
        return self.intervention is not Intervention.NONE and not self.paused


class AuthorityInputs(NamedTuple):
    """Inputs of the table. `is_silent_while_paused`: a paused robot sends no commands."""

    conditions: OperatingConditions = OperatingConditions()
    latched: bool = False
    stopped: bool = False
    interlock: bool = False
    is_silent_while_paused: bool = False
    teardown: TeardownState = TeardownState.HOLD
    joints: JointMotion = JointMotion.SILENT
    supply: ActionSupply = ActionSupply.NEVER


class MotionGrant(NamedTuple):
    """Result of the table: authority, allowed motion, and the cause as one word."""

    authority: ControlAuthority
    allowed: AllowedMotion
    cause: str


def _come_to_rest(inputs: AuthorityInputs) -> AllowedMotion:
    return AllowedMotion.SLOW_DOWN if inputs.joints is JointMotion.MOVING else AllowedMotion.NONE


def _hold(inputs: AuthorityInputs) -> AllowedMotion:
    return (
        _come_to_rest(inputs) if inputs.joints is not JointMotion.AT_REST else AllowedMotion.HOLD
    )


def _pause(inputs: AuthorityInputs) -> AllowedMotion:
    return _come_to_rest(inputs) if inputs.is_silent_while_paused else _hold(inputs)


def _tear_down(inputs: AuthorityInputs) -> AllowedMotion:
    if inputs.teardown is TeardownState.HOLD:
        return _hold(inputs)
    if inputs.teardown is TeardownState.FINISHED or inputs.joints is JointMotion.SILENT:
        return _come_to_rest(inputs)
    return AllowedMotion.TEARDOWN


def _play(_: AuthorityInputs) -> AllowedMotion:
    return AllowedMotion.PLAY


def _fall_back(inputs: AuthorityInputs) -> AllowedMotion:
    return AllowedMotion.NONE if inputs.joints is JointMotion.SILENT else AllowedMotion.FALL_BACK


RESTING = AllowedMotion.NONE, AllowedMotion.HOLD, AllowedMotion.INTERLOCK


class AuthorityRule(NamedTuple):
    """One row of the table."""

    applies: Callable[[AuthorityInputs], bool]
    authority: ControlAuthority
    allows: Callable[[AuthorityInputs], AllowedMotion]
    cause: str


def _is_dead(inputs: AuthorityInputs) -> bool:
    return inputs.conditions.state is ConnectionState.DEAD


def _is_new(inputs: AuthorityInputs) -> bool:
    return inputs.supply is ActionSupply.NEVER


AUTHORITY_RULES = (
    AuthorityRule(lambda g: g.latched, ControlAuthority.NONE, _come_to_rest, 'latched'),
    AuthorityRule(lambda g: g.stopped, ControlAuthority.NONE, _come_to_rest, 'stopped'),
    AuthorityRule(lambda g: g.conditions.paused, ControlAuthority.OPERATOR, _pause, 'paused'),
    AuthorityRule(
        lambda g: g.conditions.intervention is Intervention.COMMANDING,
        ControlAuthority.PERSON,
        _play,
        'person_commands',
    ),
    AuthorityRule(lambda g: not g.conditions.running, ControlAuthority.NONE, _hold, 'no_episode'),
    AuthorityRule(
        lambda g: g.conditions.intervention is Intervention.LOST,
        ControlAuthority.LADDER,
        _fall_back,
        'person_lost',
    ),
    AuthorityRule(
        lambda g: _is_dead(g) and _is_new(g), ControlAuthority.TEARDOWN, _come_to_rest, 'given_up'
    ),
    AuthorityRule(_is_new, ControlAuthority.LADDER, _come_to_rest, 'nothing_played_yet'),
    AuthorityRule(_is_dead, ControlAuthority.TEARDOWN, _tear_down, 'given_up'),
    AuthorityRule(
        lambda g: g.supply is ActionSupply.FRESH, ControlAuthority.POLICY, _play, 'policy'
    ),
    AuthorityRule(lambda _: True, ControlAuthority.LADDER, _fall_back, 'nothing_to_play'),
)


def grant_motion(inputs: AuthorityInputs) -> MotionGrant:
    """Evaluate the table."""
    # the last rule always applies
    for rule in AUTHORITY_RULES:
        if rule.applies(inputs):
            break
    allowed = rule.allows(inputs)
    if inputs.interlock and allowed is AllowedMotion.NONE:
        return MotionGrant(ControlAuthority.INTERLOCK, AllowedMotion.INTERLOCK, rule.cause)
    return MotionGrant(rule.authority, allowed, rule.cause)


def describe_pause(given: AuthorityInputs, last: AllowedMotion) -> str:
    """
    Return what a paused robot does from the next control step on, and what else holds it. `last`
    is what the last step allowed.
    """
    now = given.conditions
    sentences = [_paused_motion(given, last)]
    if now.intervention is Intervention.COMMANDING:
        sentences.append('It follows the person again after ~/resume')
    if given.latched:
        sentences.append('The safety cage is latched: only ~/reset_cage ends that')
    if given.stopped:
        sentences.append('The stop service was called: only ~/reset ends that')
    if not now.running:
        sentences.append('No episode runs')
    elif now.state is ConnectionState.DEAD:
        waits = given.teardown is TeardownState.PENDING
        sentences.append(
            'The connection is dead' + (': the teardown waits for ~/resume' if waits else '')
        )
    return '. '.join(sentences)


def _paused_motion(given: AuthorityInputs, last: AllowedMotion) -> str:
    allowed = grant_motion(given).allowed
    if allowed is AllowedMotion.INTERLOCK:
        return 'Only an active interlock moves the robot'
    if allowed is AllowedMotion.NONE:
        return 'No commands are sent'
    rests = allowed is AllowedMotion.HOLD and last in RESTING
    text = 'The robot holds still' if rests else 'The robot slows down to rest'
    if not rests and (given.is_silent_while_paused or given.latched or given.stopped):
        text += ', then is not commanded'
    return f'{text}, but for an active interlock' if given.interlock else text
