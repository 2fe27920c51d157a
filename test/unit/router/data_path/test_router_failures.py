# SPDX-License-Identifier: Apache-2.0
"""Answers without actions: who is asked next, who is blamed, and what the robot is told."""

from __future__ import annotations

import pytest
from support.router.dispatch_rig import episode_in, MS, Rig, SLOTS, TIMEOUT_NS

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.replicas.health import HealthRules

PROD = {'prod': ('/p1', '/p2')}
ALONE = {'prod': ('/p1',)}


@pytest.fixture
def rig():
    made = Rig()
    made.robot()
    return made


def prod(slots=PROD, **more) -> Rig:
    made = Rig(slots, **more)
    made.robot()
    return made


@pytest.mark.parametrize('status', [Status.BAD_OBSERVATION, Status.TOO_LATE])
def test_what_is_the_robots_own_mistake_is_told_and_held_against_nobody(rig, status):
    for _ in range(20):
        raw = rig.request(episode=episode_in('a'))
        rig.answer(rig.servers[0], raw, status)
    assert len(rig.replies) == 20
    assert rig.slots['a'].is_healthy
    assert rig.stats.slot('a').failed.total() == 0


@pytest.mark.parametrize('status', [Status.POLICY_ERROR, Status.DRAINING, Status.NO_SESSION, 99])
def test_another_replica_is_asked_when_one_fails(rig, status):
    raw = rig.request(episode=episode_in('a'))
    (first,) = rig.servers
    rig.answer(first, raw, status)
    (second,) = rig.servers
    assert {first, second} == set(SLOTS['a'])
    rig.answer(second, raw)
    assert [(seq, flags) for seq, flags, _ in rig.replies] == [(1, 0)]
    assert rig.drop('failed_over') == 1
    assert rig.slots['a'].health.failures == 0
    # and it is the first one from now on
    rig.request(episode=episode_in('a'))
    assert rig.servers == [second]


def test_what_is_not_finite_is_not_asked_of_the_same_policy_again(rig):
    raw = rig.request(episode=episode_in('a'))
    rig.answer(rig.servers[0], raw, Status.NOT_FINITE)
    assert rig.servers == []
    assert len(rig.replies) == 1
    assert rig.stats.slot('a').failed == {'not_finite': 1}


def test_the_last_failure_is_what_the_robot_is_told(rig):
    raw = rig.request(episode=episode_in('a'))
    rig.answer(rig.servers[0], raw, Status.NO_SESSION)
    rig.answer(rig.servers[0], raw, Status.POLICY_ERROR)
    ((_, told),) = rig.outside.replies
    assert wire_chunk.decode(told).status == Status.POLICY_ERROR


def test_a_chunk_of_another_policy_never_reaches_a_robot(rig):
    raw = rig.request(episode=episode_in('a'))
    first = rig.servers[0]
    rig.answer(first, raw, policy='b@7')
    second = rig.servers[0]
    rig.answer(second, raw, policy='b@7')
    assert rig.replies == []
    assert 'replies as b@7, and slot a is a@1' in rig.replicas[first].text
    # nobody is left in slot a, so it went on in slot b
    third = rig.servers[0]
    assert third in SLOTS['b']
    rig.answer(third, raw)
    assert [slot for _, _, slot in rig.replies] == ['b']
    assert rig.drop('wrong_policy') == 2


def test_a_replica_is_blamed_for_what_another_one_can_answer():
    rig = prod()
    for number in range(2):
        rig.replicas['/p2'].preferring_sessions += 10
        raw = rig.request(episode=f'episode-{number}')
        rig.answer('/p1', raw, Status.POLICY_ERROR)
        rig.answer('/p2', raw)
        assert rig.servers == ['/p1', '/p2']
    assert 'policy_error' in rig.replicas['/p1'].health.reason
    assert rig.replicas['/p2'].is_ready
    assert rig.slots['prod'].health.failures == 0


def test_a_replica_is_blamed_where_another_one_could_not_be_asked():
    rig = Rig(PROD)
    rig.robot(places={'prod': ('/p1',)})
    for _ in range(2):
        rig.answer('/p1', rig.request(), Status.POLICY_ERROR)
    assert not rig.replicas['/p1'].is_ready
    assert rig.slots['prod'].health.failures == 0


def test_a_server_that_was_started_anew_is_no_bad_slot():
    """All robots have lost their sessions at once, which are opened again."""
    rig = Rig(ALONE)
    for number in range(20):
        rig.robot(f'robot-{number}')
        raw = rig.request(f'robot-{number}')
        rig.answer('/p1', raw, Status.NO_SESSION)
    assert (len(rig.replies), len(rig.outside.reopened)) == (20, 20)
    assert rig.slots['prod'].health.failures == 0


def test_a_server_that_forgets_ever_again_is_a_bad_slot():
    rig = prod(ALONE)
    for _ in range(6):
        rig.answer('/p1', rig.request(), Status.NO_SESSION)
    assert not rig.slots['prod'].is_healthy


def test_each_request_counts_as_one_failure_however_many_are_lost_at_once():
    rig = Rig(ALONE)
    for number in range(12):
        rig.robot(f'robot-{number}')
        rig.request(f'robot-{number}')
    rig.advance(TIMEOUT_NS)
    assert rig.stats.slot('prod').failed == {'timeout': 12}
    assert rig.drop('timeout') == 12


def test_what_a_dead_one_owes_is_asked_of_the_other_slot_as_soon_as_that_is_known():
    rig = Rig({'a': ('/a1',), 'b': ('/b1',)}, rules=HealthRules(2), replica_rules=HealthRules(2))
    for number in range(6):
        rig.robot(f'robot-{number}')
        rig.request(f'robot-{number}', episode_in('a', number))
        rig.advance(100 * MS)
    rig.forget()
    rig.advance(TIMEOUT_NS - 500 * MS)
    # two are overdue, four are owed
    assert rig.servers == ['/b1'] * 6
    assert rig.stats.slot('a').moved == 6


def test_a_robot_at_which_the_policy_fails_costs_no_replica():
    """For example with a task that is too long for it."""
    rig = prod()
    for _ in range(4):
        raw = rig.request()
        for _ in PROD['prod']:
            rig.answer(rig.servers[-1], raw, Status.POLICY_ERROR)
    assert all(replica.is_ready for replica in rig.replicas.values())
    assert rig.slots['prod'].health.failures == 4
    assert len(rig.replies) == 4
