# SPDX-License-Identifier: Apache-2.0
"""Names that operators give, and the nearest right one where a name is wrong."""

from __future__ import annotations

import getpass

import pytest
from support.tools.operator_states import robot_of, router_of, slot_of

from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate.names import (
    check_policy,
    nearest_name,
    operator_name,
    resolve_robot,
    resolve_router,
    resolve_slot,
)
from lerobot_serve.tools.operate.outcome import NotReached

ROUTERS = ['/lab/policy_router', '/policy_router']
ROBOTS = [robot_of(f'/robot_{n}/edge_controller', client_id=f'arm_{n}') for n in (7, 8)]
SLOT = slot_of('b', 'reach@ab12cd')


def test_the_only_router_needs_no_name():
    assert resolve_router('', ROUTERS[:1], {}) == '/lab/policy_router'


@pytest.mark.parametrize('given', ['policy_router', '/policy_router'])
def test_a_router_is_given_with_or_without_a_slash(given):
    assert resolve_router(given, ROUTERS, {}) == '/policy_router'


@pytest.mark.parametrize(
    ('given', 'found', 'text'),
    [
        ('', [], 'no router is found'),
        (
            '',
            ROUTERS,
            '2 routers run; add --router with one of /lab/policy_router, /policy_router',
        ),
        (
            'polcy_router',
            ROUTERS,
            "no router is named 'polcy_router'; did you mean policy_router?",
        ),
        ('x', ROUTERS, "no router is named 'x'; found: lab/policy_router, policy_router"),
    ],
)
def test_a_router_that_is_not_one(given, found, text):
    with pytest.raises(UserError) as raised:
        resolve_router(given, found, {})
    assert text in str(raised.value)


KNOWN = {'/policy_router': 12.0, '/lab/policy_router': 600.0}


@pytest.mark.parametrize(
    ('given', 'found', 'named'),
    [
        (
            '',
            [],
            '/policy_router answered until 12 s ago, /lab/policy_router answered until 10 min',
        ),
        ('policy_router', [], '/policy_router answered until 12 s ago: it hangs'),
        ('/policy_router', ROUTERS[:1], '/policy_router answered until 12 s ago: it hangs'),
    ],
)
def test_a_router_that_answered_before_is_named_with_what_holds_meanwhile(given, found, named):
    with pytest.raises(NotReached) as raised:
        resolve_router(given, found, KNOWN)
    text = str(raised.value)
    assert named in text and 'Nothing was changed' in text
    assert 'run their fallback ladders' in text and '`lerobot-serve robot --all pause`' in text


def test_another_router_that_is_gone_holds_up_no_verb():
    assert resolve_router('', ROUTERS[:1], KNOWN) == ROUTERS[0]
    assert resolve_router('lab/policy_router', ROUTERS[:1], KNOWN) == ROUTERS[0]
    with pytest.raises(UserError, match="no router is named 'x'"):
        resolve_router('x', ROUTERS, KNOWN)


@pytest.mark.parametrize('given', ['robot_7', '/robot_7', '/robot_7/edge_controller', 'arm_7'])
def test_a_robot_has_three_names(given):
    assert resolve_robot(given, ROBOTS) is ROBOTS[0]


@pytest.mark.parametrize(
    ('given', 'found', 'text'),
    [
        ('robt_7', ROBOTS, 'did you mean robot_7?'),
        ('robot_9', ROBOTS, "'robot_9'; found: robot_7, robot_8"),
        ('tractor', ROBOTS, 'found: robot_7, robot_8'),
        ('robot_7', [], 'no robot is found'),
    ],
)
def test_a_robot_that_is_not_one(given, found, text):
    with pytest.raises(UserError) as raised:
        resolve_robot(given, found)
    assert text in str(raised.value)


def test_many_names_are_cut():
    many = [robot_of(f'/robot_{n}/edge_controller') for n in range(40)]
    with pytest.raises(UserError, match='and 28 more'):
        resolve_robot('tractor', many)


def test_a_slot_that_the_router_has():
    router = router_of('/r', slots=(SLOT,))
    assert resolve_slot('b', router) is SLOT
    with pytest.raises(UserError, match="/r has no slot 'c'; it has b"):
        resolve_slot('c', router)


@pytest.mark.parametrize('given', ['reach', 'reach@ab12cd', 'reach@ab', 'ab12'])
def test_a_policy_is_named_by_name_fingerprint_or_hash(given):
    assert check_policy(given, SLOT) == 'reach@ab12cd'


@pytest.mark.parametrize(
    ('given', 'text'),
    [('raech', 'did you mean reach?'), ('v9', 'serves reach@ab12cd'), ('', 'to load another')],
)
def test_another_policy_is_refused(given, text):
    with pytest.raises(UserError) as raised:
        check_policy(given, SLOT)
    assert text in str(raised.value)


def test_a_slot_without_a_policy_gives_its_reason():
    with pytest.raises(UserError, match='serves no policy yet: it loads'):
        check_policy('reach', slot_of('b', text='it loads'))


def test_a_user_without_a_name_is_named_by_number(monkeypatch):
    assert operator_name().startswith(f'{getpass.getuser()}@')

    def unknown() -> str:
        raise KeyError('uid not found')

    monkeypatch.setattr(getpass, 'getuser', unknown)
    assert operator_name().startswith('uid')


def test_a_name_that_two_robots_have_is_not_enough():
    twins = [robot_of(f'/cell_{n}/edge_controller', client_id='arm') for n in (1, 2)]
    with pytest.raises(UserError) as raised:
        resolve_robot('arm', twins)
    assert "'arm' is the name of several robots" in str(raised.value)
    assert '/cell_1/edge_controller, /cell_2/edge_controller' in str(raised.value)
    assert resolve_robot('cell_2', twins) is twins[1]


@pytest.mark.parametrize(
    ('given', 'near'),
    [
        ('ROBOT_1', 'robot_1'),
        ('robt_1', 'robot_1'),
        # another number is another robot
        ('robot_9', ''),
        ('robot_33', ''),
        ('left_amr', 'left_arm'),
        ('zebra', ''),
    ],
)
def test_the_nearest_name_is_never_another_number(given, near):
    assert nearest_name(given, ['robot_1', 'robot_3', 'left_arm']) == near


@pytest.mark.parametrize(('given', 'near'), [('B', 'b'), ('slot_b', 'b'), ('Slot a', 'a')])
def test_a_wrong_slot_is_answered_with_the_nearest_one(given, near):
    router = router_of('/r', slots=(slot_of('a'), SLOT))
    with pytest.raises(UserError, match=rf'did you mean {near}\? it has a, b'):
        resolve_slot(given, router)
    with pytest.raises(UserError, match="has no slot 'c'; it has a, b"):
        resolve_slot('c', router)
