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

from lerobot_serve.edge.states import State


class Commander(Enum):
    """Who commands."""

    POLICY = auto()
    LADDER = auto()
    # no episode runs, or only a reset lets the robot move
    NOBODY = auto()
    OPERATOR = auto()
    TEARDOWN = auto()
    INTERLOCK = auto()
    PERSON = auto()


class Allowed(Enum):
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


class Joints(Enum):
    """How the robot was commanded last."""

    # not at all: where it is has to be measured first
    SILENT = auto()
    AT_REST = auto()
    MOVING = auto()


class Supply(Enum):
    """What there is to play in this step."""

    FRESH = auto()
    DRY = auto()
    # nothing now, and nothing was played since the robot was silent
    NEVER = auto()


class Teardown(Enum):
    """What a robot that is given up does besides coming to rest."""

    HOLD = auto()
    PENDING = auto()
    FINISHED = auto()


class Person(Enum):
    """Whether a person commands the robot directly, for example with a leader arm."""

    NONE = auto()
    COMMANDING = auto()


class Orders(NamedTuple):
    """What is decided outside of the control step."""

    paused: bool = False
    # an episode, or the teardown of the one in which the robot was given up
    running: bool = True
    state: State = State.STREAMING
    person: Person = Person.NONE


class Situation(NamedTuple):
    """Everything that the table looks at. `releases`: a robot that is paused commands nothing."""

    orders: Orders = Orders()
    latched: bool = False
    stopped: bool = False
    interlock: bool = False
    releases: bool = False
    teardown: Teardown = Teardown.HOLD
    joints: Joints = Joints.SILENT
    supply: Supply = Supply.NEVER


class Grant(NamedTuple):
    """The answer: who commands, what is allowed, and why, as a word."""

    commander: Commander
    allowed: Allowed
    cause: str


def _come_to_rest(given: Situation) -> Allowed:
    return Allowed.SLOW_DOWN if given.joints is Joints.MOVING else Allowed.NONE


def _hold(given: Situation) -> Allowed:
    return _come_to_rest(given) if given.joints is not Joints.AT_REST else Allowed.HOLD


def _pause(given: Situation) -> Allowed:
    return _come_to_rest(given) if given.releases else _hold(given)


def _tear_down(given: Situation) -> Allowed:
    if given.teardown is Teardown.HOLD:
        return _hold(given)
    if given.teardown is Teardown.FINISHED or given.joints is Joints.SILENT:
        return _come_to_rest(given)
    return Allowed.TEARDOWN


def _play(_: Situation) -> Allowed:
    return Allowed.PLAY


def _fall_back(given: Situation) -> Allowed:
    return Allowed.NONE if given.joints is Joints.SILENT else Allowed.FALL_BACK


class Rule(NamedTuple):
    """One row of the table."""

    holds: Callable[[Situation], bool]
    commander: Commander
    allows: Callable[[Situation], Allowed]
    cause: str


def _is_dead(given: Situation) -> bool:
    return given.orders.state is State.DEAD


def _is_new(given: Situation) -> bool:
    return given.supply is Supply.NEVER


RULES = (
    Rule(lambda g: g.latched, Commander.NOBODY, _come_to_rest, 'latched'),
    Rule(lambda g: g.stopped, Commander.NOBODY, _come_to_rest, 'stopped'),
    Rule(
        lambda g: g.orders.person is Person.COMMANDING, Commander.PERSON, _play, 'person_commands'
    ),
    Rule(lambda g: g.orders.paused, Commander.OPERATOR, _pause, 'paused'),
    Rule(lambda g: not g.orders.running, Commander.NOBODY, _hold, 'no_episode'),
    Rule(lambda g: _is_dead(g) and _is_new(g), Commander.TEARDOWN, _come_to_rest, 'given_up'),
    Rule(_is_new, Commander.LADDER, _come_to_rest, 'nothing_played_yet'),
    Rule(_is_dead, Commander.TEARDOWN, _tear_down, 'given_up'),
    Rule(lambda g: g.supply is Supply.FRESH, Commander.POLICY, _play, 'play'),
    Rule(lambda _: True, Commander.LADDER, _fall_back, 'nothing_to_play'),
)


def decide(given: Situation) -> Grant:
    """Return who commands and what is allowed."""
    # the last one always holds
    for rule in RULES:
        if rule.holds(given):
            break
    allowed = rule.allows(given)
    if given.interlock and allowed is Allowed.NONE:
        return Grant(Commander.INTERLOCK, Allowed.INTERLOCK, rule.cause)
    return Grant(rule.commander, allowed, rule.cause)
