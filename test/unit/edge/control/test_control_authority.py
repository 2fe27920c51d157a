# SPDX-License-Identifier: Apache-2.0
"""
Who commands, for every combination of what may have a say in it.

Each predicate below says why what is allowed is safe, in terms of the combination alone; none
looks at the rules and their order. Together they leave one answer for each combination.
"""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.edge.control.authority import (
    ActionSupply,
    AllowedMotion,
    AUTHORITY_RULES,
    AuthorityInputs,
    ControlAuthority,
    describe_pause,
    grant_motion,
    Intervention,
    JointMotion,
    MotionGrant,
    OperatingConditions,
    TeardownState,
)
from lerobot_serve.edge.session.connection import ConnectionState

BOOLEANS = False, True
QUIET = AllowedMotion.NONE, AllowedMotion.HOLD, AllowedMotion.SLOW_DOWN, AllowedMotion.INTERLOCK
# a command that begins or continues with a motion
MOTION = AllowedMotion.PLAY, AllowedMotion.FALL_BACK, AllowedMotion.TEARDOWN


def every() -> list[AuthorityInputs]:
    conditions = [
        OperatingConditions(*one)
        for one in product(BOOLEANS, BOOLEANS, ConnectionState, Intervention)
    ]
    switches = product(BOOLEANS, BOOLEANS, BOOLEANS, BOOLEANS)
    rest = list(product(switches, TeardownState, JointMotion, ActionSupply))
    return [
        AuthorityInputs(one, *switched, teardown, joints, supply)
        for one in conditions
        for switched, teardown, joints, supply in rest
    ]


EVERY = every()


def test_there_is_no_combination_left_out():
    assert len(EVERY) == len(set(EVERY)) == 2 * 2 * 6 * 3 * 2**4 * 3**3
    assert len(AuthorityInputs._fields) == 8
    assert len(OperatingConditions._fields) == 4


# each is given a combination and its answer, and holds for all of them


def a_latch_allows_braking_and_interlocks(given: AuthorityInputs, grant: MotionGrant) -> bool:
    """A policy that drove into the limits all the time drives no more until a person looked."""
    return not given.latched or grant.allowed in QUIET[:1] + QUIET[2:]


def a_stop_by_service_allows_braking_and_interlocks(
    given: AuthorityInputs, grant: MotionGrant
) -> bool:
    """What stopped the robot may have cut its power: only a reset makes it a robot to command."""
    return not given.stopped or grant.allowed in QUIET[:1] + QUIET[2:]


def a_pause_begins_no_motion(given: AuthorityInputs, grant: MotionGrant) -> bool:
    """
    A person may stand in the robot's reach, and another one hold a leader arm; also a teardown
    waits, and the stop service.
    """
    return not given.conditions.paused or grant.allowed in QUIET


def between_episodes_no_motion_begins(given: AuthorityInputs, grant: MotionGrant) -> bool:
    """A person changes the scene; they may move the robot with a device."""
    by_hand = given.conditions.intervention is Intervention.COMMANDING
    return given.conditions.running or by_hand or grant.allowed in QUIET


def silence_is_left_by_a_policy_a_person_or_an_interlock(
    given: AuthorityInputs, grant: MotionGrant
) -> bool:
    """The robot may stand anywhere: what has nothing to do there does not begin."""
    begins = AllowedMotion.NONE, AllowedMotion.PLAY, AllowedMotion.INTERLOCK
    return given.joints is not JointMotion.SILENT or grant.allowed in begins


def before_the_first_action_nothing_moves(given: AuthorityInputs, grant: MotionGrant) -> bool:
    """
    The robot stands where a person put it; only what an interlock or a person moved is slowed
    down.
    """
    by_hand = given.conditions.intervention is not Intervention.NONE
    return given.supply is not ActionSupply.NEVER or by_hand or grant.allowed in QUIET


def an_interlock_is_always_heard(given: AuthorityInputs, grant: MotionGrant) -> bool:
    """The cage forces in every command: there must be one."""
    return not given.interlock or grant.allowed is not AllowedMotion.NONE


def without_an_interlock_none_acts(given: AuthorityInputs, grant: MotionGrant) -> bool:
    return given.interlock or grant.allowed is not AllowedMotion.INTERLOCK


def what_moves_is_never_left_to_itself(given: AuthorityInputs, grant: MotionGrant) -> bool:
    """Silence would let a velocity go on; braking comes before silence and before a hold."""
    left = AllowedMotion.NONE, AllowedMotion.HOLD, AllowedMotion.INTERLOCK
    return given.joints is not JointMotion.MOVING or grant.allowed not in left


def only_what_moves_is_slowed_down(given: AuthorityInputs, grant: MotionGrant) -> bool:
    return given.joints is JointMotion.MOVING or grant.allowed is not AllowedMotion.SLOW_DOWN


def a_policy_plays_in_a_living_episode_alone(given: AuthorityInputs, grant: MotionGrant) -> bool:
    """And what was given up is not driven by what is still buffered."""
    now = given.conditions
    may = now.running and not now.paused and now.state is not ConnectionState.DEAD
    may = may and given.supply is ActionSupply.FRESH and not (given.latched or given.stopped)
    may = may and now.intervention is Intervention.NONE
    plays = grant.allowed is AllowedMotion.PLAY and grant.authority is not ControlAuthority.PERSON
    return plays == may


def a_person_in_command_is_stopped_by_cage_stop_and_pause_alone(
    given: AuthorityInputs, grant: MotionGrant
) -> bool:
    commands = given.conditions.intervention is Intervention.COMMANDING
    may = commands and not (given.latched or given.stopped or given.conditions.paused)
    plays = grant.allowed is AllowedMotion.PLAY and grant.authority is ControlAuthority.PERSON
    return plays == may


def a_teardown_moves_a_robot_given_up_in_its_episode(
    given: AuthorityInputs, grant: MotionGrant
) -> bool:
    """Once, where it is to move at all, and only from where it was driven."""
    now = given.conditions
    may = now.state is ConnectionState.DEAD and now.running and not now.paused
    may = may and now.intervention is Intervention.NONE and not (given.latched or given.stopped)
    may = (
        may and given.teardown is TeardownState.PENDING and given.joints is not JointMotion.SILENT
    )
    may = may and given.supply is not ActionSupply.NEVER
    return (grant.allowed is AllowedMotion.TEARDOWN) == may


def the_ladder_falls_back_where_a_policy_would_play(
    given: AuthorityInputs, grant: MotionGrant
) -> bool:
    """
    It is what the silence of the policy means, and that of a person who has taken over: where
    neither may play, nor may it.
    """
    now = given.conditions
    may = now.running and not now.paused and not (given.latched or given.stopped)
    may = may and given.joints is not JointMotion.SILENT
    policy_is_silent = now.state is not ConnectionState.DEAD and given.supply is ActionSupply.EMPTY
    policy_is_silent = policy_is_silent and now.intervention is Intervention.NONE
    person_is_silent = now.intervention is Intervention.LOST
    return (grant.allowed is AllowedMotion.FALL_BACK) == (
        may and (policy_is_silent or person_is_silent)
    )


def who_is_at_rest_and_may_hold_does(given: AuthorityInputs, grant: MotionGrant) -> bool:
    """Where the torque stays on, the pose stays: in a pause, between episodes, in a teardown."""
    now = given.conditions
    may = given.joints is JointMotion.AT_REST and not (given.latched or given.stopped)
    may = may and (now.paused or now.intervention is not Intervention.COMMANDING)
    paused = now.paused and not given.is_silent_while_paused
    idle = not now.paused and not now.running
    dead = not now.paused and now.running and now.state is ConnectionState.DEAD
    dead = dead and given.teardown is TeardownState.HOLD and given.supply is not ActionSupply.NEVER
    dead = dead and now.intervention is Intervention.NONE
    return (grant.allowed is AllowedMotion.HOLD) == (may and (paused or idle or dead))


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
    a_person_in_command_is_stopped_by_cage_stop_and_pause_alone,
    a_teardown_moves_a_robot_given_up_in_its_episode,
    the_ladder_falls_back_where_a_policy_would_play,
    who_is_at_rest_and_may_hold_does,
]


@pytest.mark.parametrize('holds', PREDICATES, ids=lambda one: one.__name__)
def test_in_every_combination(holds):
    broken = [
        (given, grant_motion(given)) for given in EVERY if not holds(given, grant_motion(given))
    ]
    assert not broken, f'{len(broken)} of {len(EVERY)}, first {broken[0]}'


def test_the_predicates_leave_one_answer_for_each_combination():
    """So that no rule may be changed without one of them."""
    for given in EVERY[::7]:
        grant = grant_motion(given)
        others = [
            allowed
            for allowed in AllowedMotion
            if all(holds(given, grant._replace(allowed=allowed)) for holds in PREDICATES)
        ]
        assert others == [grant.allowed], given


NAMED = [
    AuthorityInputs(latched=True),
    AuthorityInputs(stopped=True),
    AuthorityInputs(latched=True, stopped=True),
    AuthorityInputs(OperatingConditions(paused=True)),
    AuthorityInputs(OperatingConditions(paused=True, state=ConnectionState.DEAD)),
    AuthorityInputs(OperatingConditions(running=False)),
    AuthorityInputs(OperatingConditions(running=False, state=ConnectionState.DEAD)),
    AuthorityInputs(OperatingConditions(state=ConnectionState.DEAD)),
    AuthorityInputs(),
    AuthorityInputs(interlock=True),
    AuthorityInputs(stopped=True, interlock=True),
    AuthorityInputs(
        OperatingConditions(state=ConnectionState.DEAD, intervention=Intervention.LOST)
    ),
    AuthorityInputs(OperatingConditions(paused=True, intervention=Intervention.LOST)),
    AuthorityInputs(OperatingConditions(paused=True, intervention=Intervention.COMMANDING)),
    AuthorityInputs(OperatingConditions(running=False, intervention=Intervention.COMMANDING)),
]


@pytest.mark.golden
def test_the_answer_names_who_commands_and_why(golden):
    grants = [(given, grant_motion(given)) for given in NAMED]
    said = [f'{given}\n  {grant.authority.name} {grant.cause}\n' for given, grant in grants]
    golden.holds('edge/authority.txt', ''.join(said))


# what a pause says in each row of the table of control authority: only what is true


SLOWS, HOLDS = 'The robot slows down to rest', 'The robot holds still'
SILENT = 'No commands are sent'
PLAYED = AuthorityInputs(joints=JointMotion.MOVING, supply=ActionSupply.EMPTY)
RESTING = PLAYED._replace(joints=JointMotion.AT_REST)
FRESH = PLAYED._replace(supply=ActionSupply.FRESH)


def now(given: AuthorityInputs, **conditions: object) -> AuthorityInputs:
    return given._replace(conditions=given.conditions._replace(**conditions))


DEAD = {'state': ConnectionState.DEAD}
PERSON = {'intervention': Intervention.COMMANDING}
# the inputs before the pause, of each row
ROWS = [
    AuthorityInputs(latched=True),
    PLAYED._replace(latched=True),
    AuthorityInputs(stopped=True),
    now(FRESH, paused=True),
    now(RESTING, paused=True),
    now(RESTING._replace(is_silent_while_paused=True), paused=True),
    now(PLAYED, **PERSON),
    now(RESTING, running=False, **PERSON),
    now(RESTING, running=False),
    now(AuthorityInputs(), running=False),
    now(RESTING, intervention=Intervention.LOST),
    AuthorityInputs(),
    now(RESTING, **DEAD),
    now(RESTING._replace(teardown=TeardownState.PENDING), **DEAD),
    FRESH,
    FRESH._replace(is_silent_while_paused=True),
    FRESH._replace(interlock=True),
    PLAYED,
]


@pytest.mark.golden
def test_the_reply_of_each_row(golden):
    said = []
    for before in ROWS:
        last = grant_motion(before)
        given = now(before._replace(supply=ActionSupply.EMPTY), paused=True)
        said.append(f'{last.cause}: {describe_pause(given, last.allowed)}\n')
    golden.holds('edge/pause.txt', ''.join(said))


def test_no_row_is_left_out():
    assert {grant_motion(each).cause for each in ROWS} == {rule.cause for rule in AUTHORITY_RULES}


def test_in_every_combination_the_reply_is_what_the_table_grants():
    for latched, stopped, interlock, silent, running in product(BOOLEANS, repeat=5):
        for state, person, teardown, joints, last in product(
            ConnectionState, Intervention, TeardownState, JointMotion, AllowedMotion
        ):
            given = AuthorityInputs(
                OperatingConditions(True, running, state, person),
                *(latched, stopped, interlock, silent, teardown, joints),
            )
            allowed = grant_motion(given).allowed
            text = describe_pause(given, last)
            does = text.split('. ')[0].split(',')[0]
            assert (does == SILENT) == (allowed is AllowedMotion.NONE), given
            assert ('Only' in does) == (allowed is AllowedMotion.INTERLOCK)
            if does == HOLDS:
                assert (allowed, joints) == (AllowedMotion.HOLD, JointMotion.AT_REST)
            # what is at rest, and was not allowed to move in the last step, is not slowed down
            elif does == SLOWS and last in (AllowedMotion.NONE, AllowedMotion.HOLD):
                assert joints is JointMotion.MOVING
            assert ('interlock' in text) == interlock
            assert ('~/reset_cage' in text) == latched
            assert ('~/reset ends' in text) == stopped
