"""
Who commands the robot in a control step, and which motion is allowed: one table.

Pure: no clock, no lock, no state. Whatever may have a say in it (an operator, an episode, the
connection, the latch of the cage, a stop by service, a teardown, an interlock, a person in
command) is an input; the control step asks each time and does nothing that the answer does not
allow. The first rule that holds decides, in this order:

    rule            commander  what it may do
    latched         nobody     come to rest, then nothing: only ~/reset_cage opens the latch
    stopped         nobody     come to rest, then nothing: only ~/reset lifts a stop by service
    person          person     move the robot: a person outranks all but cage and interlocks
    paused          operator   come to rest, then hold, or nothing where `releases`
    no_episode      nobody     come to rest, then hold
    given_up, and nothing was ever played
                    teardown   come to rest, then nothing: it stands where a person put it
    nothing played  ladder     come to rest, then nothing: the same
    given_up        teardown   the teardown's motion, where there is one; nothing after it
    fresh           policy     play
    dry             ladder     what the ladder says

From silence (no command since the robot was last known) only a policy, a person or an interlock
begins: a hold, a ladder or a teardown that has nothing to begin from stays silent.

Interlocks act in every state: where a rule allows a command the cage forces their actions in it,
and where no rule allows one an active interlock commands alone.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import auto, Enum
from typing import NamedTuple

from lerobot_serve.edge.session.connection import ConnectionState


class ControlAuthority(Enum):
    """Who commands."""

    POLICY = auto()
    LADDER = auto()
    # no episode runs, or only a reset lets the robot move
    NOBODY = auto()
    OPERATOR = auto()
    TEARDOWN = auto()
    INTERLOCK = auto()
    PERSON = auto()


class AllowedMotion(Enum):
    """Which motion is allowed."""

    # no command at all
    NONE = auto()
    # the positions commanded last, velocities at zero
    HOLD = auto()
    # what moves comes to rest; nothing speeds up or begins
    SLOW_DOWN = auto()
    # what the policy or the person in command wants
    PLAY = auto()
    # the rungs of the ladder
    FALL_BACK = auto()
    # the rungs of the teardown
    TEARDOWN = auto()
    # the actions that interlocks force; everything else holds
    INTERLOCK = auto()


class JointMotion(Enum):
    """How the robot was commanded last."""

    # not at all: where it is has to be measured first
    SILENT = auto()
    AT_REST = auto()
    MOVING = auto()


class ActionSupply(Enum):
    """What there is to play in this step."""

    FRESH = auto()
    DRY = auto()
    # nothing now, and nothing was played since the robot was silent
    NEVER = auto()


class TeardownState(Enum):
    """What a robot that is given up does besides coming to rest."""

    HOLD = auto()
    PENDING = auto()
    FINISHED = auto()


class Intervention(Enum):
    """Whether a person commands the robot directly, for example with a leader arm."""

    NONE = auto()
    COMMANDING = auto()


class OperatingConditions(NamedTuple):
    """What is decided outside of the control step."""

    paused: bool = False
    # an episode, or the teardown of the one in which the robot was given up
    running: bool = True
    state: ConnectionState = ConnectionState.STREAMING
    person: Intervention = Intervention.NONE


class AuthorityInputs(NamedTuple):
    """Everything that the table looks at. `releases`: a robot that is paused commands nothing."""

    orders: OperatingConditions = OperatingConditions()
    latched: bool = False
    stopped: bool = False
    interlock: bool = False
    releases: bool = False
    teardown: TeardownState = TeardownState.HOLD
    joints: JointMotion = JointMotion.SILENT
    supply: ActionSupply = ActionSupply.NEVER


class MotionGrant(NamedTuple):
    """The answer: who commands, what is allowed, and why, as a word."""

    commander: ControlAuthority
    allowed: AllowedMotion
    cause: str


def _come_to_rest(given: AuthorityInputs) -> AllowedMotion:
    return AllowedMotion.SLOW_DOWN if given.joints is JointMotion.MOVING else AllowedMotion.NONE


def _hold(given: AuthorityInputs) -> AllowedMotion:
    return _come_to_rest(given) if given.joints is not JointMotion.AT_REST else AllowedMotion.HOLD


def _pause(given: AuthorityInputs) -> AllowedMotion:
    return _come_to_rest(given) if given.releases else _hold(given)


def _tear_down(given: AuthorityInputs) -> AllowedMotion:
    if given.teardown is TeardownState.HOLD:
        return _hold(given)
    if given.teardown is TeardownState.FINISHED or given.joints is JointMotion.SILENT:
        return _come_to_rest(given)
    return AllowedMotion.TEARDOWN


def _play(_: AuthorityInputs) -> AllowedMotion:
    return AllowedMotion.PLAY


def _fall_back(given: AuthorityInputs) -> AllowedMotion:
    return AllowedMotion.NONE if given.joints is JointMotion.SILENT else AllowedMotion.FALL_BACK


class AuthorityRule(NamedTuple):
    """One row of the table."""

    holds: Callable[[AuthorityInputs], bool]
    commander: ControlAuthority
    allows: Callable[[AuthorityInputs], AllowedMotion]
    cause: str


def _is_dead(given: AuthorityInputs) -> bool:
    return given.orders.state is ConnectionState.DEAD


def _is_new(given: AuthorityInputs) -> bool:
    return given.supply is ActionSupply.NEVER


AUTHORITY_RULES = (
    AuthorityRule(lambda g: g.latched, ControlAuthority.NOBODY, _come_to_rest, 'latched'),
    AuthorityRule(lambda g: g.stopped, ControlAuthority.NOBODY, _come_to_rest, 'stopped'),
    AuthorityRule(
        lambda g: g.orders.person is Intervention.COMMANDING,
        ControlAuthority.PERSON,
        _play,
        'person_commands',
    ),
    AuthorityRule(lambda g: g.orders.paused, ControlAuthority.OPERATOR, _pause, 'paused'),
    AuthorityRule(lambda g: not g.orders.running, ControlAuthority.NOBODY, _hold, 'no_episode'),
    AuthorityRule(
        lambda g: _is_dead(g) and _is_new(g), ControlAuthority.TEARDOWN, _come_to_rest, 'given_up'
    ),
    AuthorityRule(_is_new, ControlAuthority.LADDER, _come_to_rest, 'nothing_played_yet'),
    AuthorityRule(_is_dead, ControlAuthority.TEARDOWN, _tear_down, 'given_up'),
    AuthorityRule(
        lambda g: g.supply is ActionSupply.FRESH, ControlAuthority.POLICY, _play, 'play'
    ),
    AuthorityRule(lambda _: True, ControlAuthority.LADDER, _fall_back, 'nothing_to_play'),
)


def grant_motion(given: AuthorityInputs) -> MotionGrant:
    """Return who commands and what is allowed."""
    # the last one always holds
    for rule in AUTHORITY_RULES:
        if rule.holds(given):
            break
    allowed = rule.allows(given)
    if given.interlock and allowed is AllowedMotion.NONE:
        return MotionGrant(ControlAuthority.INTERLOCK, AllowedMotion.INTERLOCK, rule.cause)
    return MotionGrant(rule.commander, allowed, rule.cause)
