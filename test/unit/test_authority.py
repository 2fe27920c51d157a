"""
Who commands, for every combination of what may have a say in it.

Each predicate below says why what is allowed is safe, in terms of the combination alone; none
looks at the rules and their order. Together they leave one answer for each combination.
"""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.edge.authority import (
    Allowed,
    Commander,
    decide,
    Grant,
    Joints,
    Orders,
    Person,
    Situation,
    Supply,
    Teardown,
)
from lerobot_serve.edge.states import State

BOOLEANS = False, True
QUIET = Allowed.NONE, Allowed.HOLD, Allowed.SLOW_DOWN, Allowed.INTERLOCK
# a command that begins or goes on with a motion
MOTION = Allowed.PLAY, Allowed.FALL_BACK, Allowed.TEARDOWN


def every() -> list[Situation]:
    orders = [Orders(*one) for one in product(BOOLEANS, BOOLEANS, State, Person)]
    switches = product(BOOLEANS, BOOLEANS, BOOLEANS, BOOLEANS)
    rest = list(product(switches, Teardown, Joints, Supply))
    return [
        Situation(order, *switched, teardown, joints, supply)
        for order in orders
        for switched, teardown, joints, supply in rest
    ]


EVERY = every()


def test_there_is_no_combination_left_out():
    assert len(EVERY) == len(set(EVERY)) == 2 * 2 * 6 * 2 * 2**4 * 3**3
    assert len(Situation._fields) == 8
    assert len(Orders._fields) == 4


# each is given a combination and its answer, and holds for all of them


def a_latch_allows_braking_and_interlocks(given: Situation, grant: Grant) -> bool:
    """A policy that drove into the limits all the time drives no more until a person looked."""
    return not given.latched or grant.allowed in QUIET[:1] + QUIET[2:]


def a_stop_by_service_allows_braking_and_interlocks(given: Situation, grant: Grant) -> bool:
    """What stopped the robot may have cut its power: only a reset makes it a robot to command."""
    return not given.stopped or grant.allowed in QUIET[:1] + QUIET[2:]


def a_pause_begins_no_motion(given: Situation, grant: Grant) -> bool:
    """A person may stand in the robot's reach; also a teardown waits, and the stop service."""
    by_hand = given.orders.person is Person.COMMANDING
    return not given.orders.paused or by_hand or grant.allowed in QUIET


def between_episodes_no_motion_begins(given: Situation, grant: Grant) -> bool:
    """A person changes the scene: the same as a pause."""
    by_hand = given.orders.person is Person.COMMANDING
    return given.orders.running or by_hand or grant.allowed in QUIET


def silence_is_left_by_a_policy_a_person_or_an_interlock(given: Situation, grant: Grant) -> bool:
    """The robot may stand anywhere: what has nothing to do there does not begin."""
    begins = Allowed.NONE, Allowed.PLAY, Allowed.INTERLOCK
    return given.joints is not Joints.SILENT or grant.allowed in begins


def before_the_first_action_nothing_moves(given: Situation, grant: Grant) -> bool:
    """The robot stands where a person put it; only what an interlock moved is slowed down."""
    by_hand = given.orders.person is Person.COMMANDING
    return given.supply is not Supply.NEVER or by_hand or grant.allowed in QUIET


def an_interlock_is_always_heard(given: Situation, grant: Grant) -> bool:
    """The cage forces in every command: there must be one."""
    return not given.interlock or grant.allowed is not Allowed.NONE


def without_an_interlock_none_acts(given: Situation, grant: Grant) -> bool:
    return given.interlock or grant.allowed is not Allowed.INTERLOCK


def what_moves_is_never_left_to_itself(given: Situation, grant: Grant) -> bool:
    """Silence would let a velocity go on; braking comes before silence and before a hold."""
    left = Allowed.NONE, Allowed.HOLD, Allowed.INTERLOCK
    return given.joints is not Joints.MOVING or grant.allowed not in left


def only_what_moves_is_slowed_down(given: Situation, grant: Grant) -> bool:
    return given.joints is Joints.MOVING or grant.allowed is not Allowed.SLOW_DOWN


def a_policy_plays_in_a_living_episode_alone(given: Situation, grant: Grant) -> bool:
    """And what was given up is not driven by what is still buffered."""
    orders = given.orders
    may = orders.running and not orders.paused and orders.state is not State.DEAD
    may = may and given.supply is Supply.FRESH and not (given.latched or given.stopped)
    may = may and orders.person is Person.NONE
    plays = grant.allowed is Allowed.PLAY and grant.commander is not Commander.PERSON
    return plays == may


def a_person_in_command_is_stopped_by_cage_and_stop_alone(given: Situation, grant: Grant) -> bool:
    commands = given.orders.person is Person.COMMANDING
    may = commands and not (given.latched or given.stopped)
    plays = grant.allowed is Allowed.PLAY and grant.commander is Commander.PERSON
    return plays == may


def a_teardown_moves_a_robot_given_up_in_its_episode(given: Situation, grant: Grant) -> bool:
    """Once, where it is to move at all, and only from where it was driven."""
    orders = given.orders
    may = orders.state is State.DEAD and orders.running and not orders.paused
    may = may and orders.person is Person.NONE and not (given.latched or given.stopped)
    may = may and given.teardown is Teardown.PENDING and given.joints is not Joints.SILENT
    may = may and given.supply is not Supply.NEVER
    return (grant.allowed is Allowed.TEARDOWN) == may


def the_ladder_falls_back_where_a_policy_would_play(given: Situation, grant: Grant) -> bool:
    """It is what the policy's silence means: where the policy must not play, nor must it."""
    orders = given.orders
    may = orders.running and not orders.paused and orders.state is not State.DEAD
    may = may and given.supply is Supply.DRY and not (given.latched or given.stopped)
    may = may and orders.person is Person.NONE and given.joints is not Joints.SILENT
    return (grant.allowed is Allowed.FALL_BACK) == may


def who_is_at_rest_and_may_hold_does(given: Situation, grant: Grant) -> bool:
    """Where the torque stays on, the pose stays: in a pause, between episodes, in a teardown."""
    orders = given.orders
    may = given.joints is Joints.AT_REST and not (given.latched or given.stopped)
    may = may and orders.person is Person.NONE
    paused = orders.paused and not given.releases
    idle = not orders.paused and not orders.running
    dead = not orders.paused and orders.running and orders.state is State.DEAD
    dead = dead and given.teardown is Teardown.HOLD and given.supply is not Supply.NEVER
    return (grant.allowed is Allowed.HOLD) == (may and (paused or idle or dead))


PREDICATES = [
    a_latch_allows_braking_and_interlocks,
    a_stop_by_service_allows_braking_and_interlocks,
    a_pause_begins_no_motion,
    between_episodes_no_motion_begins,
    silence_is_left_by_a_policy_a_person_or_an_interlock,
    before_the_first_action_nothing_moves,
    an_interlock_is_always_heard,
    without_an_interlock_none_acts,
    what_moves_is_never_left_to_itself,
    only_what_moves_is_slowed_down,
    a_policy_plays_in_a_living_episode_alone,
    a_person_in_command_is_stopped_by_cage_and_stop_alone,
    a_teardown_moves_a_robot_given_up_in_its_episode,
    the_ladder_falls_back_where_a_policy_would_play,
    who_is_at_rest_and_may_hold_does,
]


@pytest.mark.parametrize('holds', PREDICATES, ids=lambda one: one.__name__)
def test_in_every_combination(holds):
    broken = [(given, decide(given)) for given in EVERY if not holds(given, decide(given))]
    assert not broken, f'{len(broken)} of {len(EVERY)}, first {broken[0]}'


def test_the_predicates_leave_one_answer_for_each_combination():
    """So that no rule may be changed without one of them."""
    for given in EVERY[::7]:
        grant = decide(given)
        others = [
            allowed
            for allowed in Allowed
            if all(holds(given, grant._replace(allowed=allowed)) for holds in PREDICATES)
        ]
        assert others == [grant.allowed], given


NAMED = [
    (Situation(latched=True), Commander.NOBODY, 'latched'),
    (Situation(stopped=True), Commander.NOBODY, 'stopped'),
    (Situation(latched=True, stopped=True), Commander.NOBODY, 'latched'),
    (Situation(Orders(paused=True)), Commander.OPERATOR, 'paused'),
    (Situation(Orders(paused=True, state=State.DEAD)), Commander.OPERATOR, 'paused'),
    (Situation(Orders(running=False)), Commander.NOBODY, 'no_episode'),
    (Situation(Orders(running=False, state=State.DEAD)), Commander.NOBODY, 'no_episode'),
    (Situation(Orders(state=State.DEAD)), Commander.TEARDOWN, 'given_up'),
    (Situation(), Commander.LADDER, 'nothing_played_yet'),
    (Situation(interlock=True), Commander.INTERLOCK, 'nothing_played_yet'),
    (Situation(stopped=True, interlock=True), Commander.INTERLOCK, 'stopped'),
    (
        Situation(Orders(paused=True, person=Person.COMMANDING)),
        Commander.PERSON,
        'person_commands',
    ),
]


@pytest.mark.parametrize(('given', 'commander', 'cause'), NAMED)
def test_the_answer_names_who_commands_and_why(given, commander, cause):
    grant = decide(given)
    assert (grant.commander, grant.cause) == (commander, cause)
