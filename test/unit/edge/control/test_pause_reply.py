# SPDX-License-Identifier: Apache-2.0
"""What a pause says in each row of the table of control authority: only what is true."""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.edge.control.authority import (
    ActionSupply,
    AllowedMotion,
    AUTHORITY_RULES,
    AuthorityInputs,
    describe_pause,
    grant_motion,
    Intervention,
    JointMotion,
    OperatingConditions,
    TeardownState,
)
from lerobot_serve.edge.session.connection import ConnectionState

BOOLEANS = False, True
SLOWS, HOLDS = 'The robot slows down to rest', 'The robot holds still'
SILENT = 'No commands are sent'
PLAYED = AuthorityInputs(joints=JointMotion.MOVING, supply=ActionSupply.EMPTY)
RESTING = PLAYED._replace(joints=JointMotion.AT_REST)
FRESH = PLAYED._replace(supply=ActionSupply.FRESH)


def now(given: AuthorityInputs, **conditions: object) -> AuthorityInputs:
    return given._replace(conditions=given.conditions._replace(**conditions))


DEAD = {'state': ConnectionState.DEAD}
PERSON = {'intervention': Intervention.COMMANDING}
# the row that applies before the pause, its inputs, and the reply
ROWS = [
    (
        'latched',
        AuthorityInputs(latched=True),
        f'{SILENT}. The safety cage is latched: only ~/reset_cage ends that',
    ),
    (
        'latched',
        PLAYED._replace(latched=True),
        f'{SLOWS}, then is not commanded. The safety cage is latched: only ~/reset_cage ends that',
    ),
    (
        'stopped',
        AuthorityInputs(stopped=True),
        f'{SILENT}. The stop service was called: only ~/reset ends that',
    ),
    ('paused', now(FRESH, paused=True), SLOWS),
    ('paused', now(RESTING, paused=True), HOLDS),
    ('paused', now(RESTING._replace(is_silent_while_paused=True), paused=True), SILENT),
    (
        'person_commands',
        now(PLAYED, **PERSON),
        f'{SLOWS}. It follows the person again after ~/resume',
    ),
    (
        'person_commands',
        now(RESTING, running=False, **PERSON),
        f'{SLOWS}. It follows the person again after ~/resume. No episode runs',
    ),
    ('no_episode', now(RESTING, running=False), f'{HOLDS}. No episode runs'),
    ('no_episode', now(AuthorityInputs(), running=False), f'{SILENT}. No episode runs'),
    ('person_lost', now(RESTING, intervention=Intervention.LOST), SLOWS),
    ('nothing_played_yet', AuthorityInputs(), SILENT),
    ('given_up', now(RESTING, **DEAD), f'{HOLDS}. The connection is dead'),
    (
        'given_up',
        now(RESTING._replace(teardown=TeardownState.PENDING), **DEAD),
        f'{SLOWS}. The connection is dead: the teardown waits for ~/resume',
    ),
    ('policy', FRESH, SLOWS),
    (
        'policy',
        FRESH._replace(is_silent_while_paused=True),
        f'{SLOWS}, then is not commanded',
    ),
    (
        'policy',
        FRESH._replace(interlock=True),
        f'{SLOWS}, but for an active interlock',
    ),
    ('nothing_to_play', PLAYED, SLOWS),
]


@pytest.mark.parametrize(('cause', 'before', 'text'), ROWS)
def test_the_reply_of_each_row(cause, before, text):
    last = grant_motion(before)
    assert last.cause == cause
    given = now(before._replace(supply=ActionSupply.EMPTY), paused=True)
    assert describe_pause(given, last.allowed) == text


def test_no_row_is_left_out():
    assert {cause for cause, _, _ in ROWS} == {rule.cause for rule in AUTHORITY_RULES}


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
