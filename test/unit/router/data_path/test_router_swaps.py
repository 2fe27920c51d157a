# SPDX-License-Identifier: Apache-2.0
"""Servers swap their policy under running episodes behind a router."""

from __future__ import annotations

import pytest
from support.router.dispatch_rig import episode_in, MS, Rig, SECOND

from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.router.placement.eligibility import PolicyVerdict
from lerobot_serve.router.replicas.replica import ReplicaState
from lerobot_serve.router.replicas.slot import VerdictRecord

ONE = {'prod': ('/p1',)}
TWO = {'prod': ('/p1', '/p2')}
OLD, NEW = 'prod@1', 'prod@2'
CHANGED = Flag.POLICY_CHANGED


def running(slots: dict, *known: str, **episode: str) -> Rig:
    """Return a rig with a robot that knows these policies and has a running episode."""
    made = Rig(slots)
    made.robot().known_policies = set(known)
    made.round_trip(**episode)
    made.forget()
    return made


@pytest.fixture
def rig() -> Rig:
    """One slot of one server."""
    return running(ONE, OLD)


def replied(rig: Rig, flags: int = 0, *, server: str = '/p1', policy: str = NEW) -> tuple:
    """Return flags and status of what a robot gets when a server answers its next request."""
    raw = rig.request()
    rig.now_ns += MS
    rig.answer(server, raw, policy=policy, flags=flags)
    return taken(rig)


def taken(rig: Rig) -> tuple:
    texts = rig.texts
    return tuple(flags for _, flags, _ in rig.replies) + tuple(texts)


def swaps(rig: Rig, server: str = '/p1', policy: str = NEW) -> None:
    rig.learn(server, policy, swapped=True)


@pytest.mark.parametrize('first', ['chunk', 'status'])
def test_a_running_episode_goes_on_and_its_change_is_told_once(rig, first):
    if first == 'status':
        swaps(rig)
    assert replied(rig, CHANGED) == (CHANGED,)
    swaps(rig)
    assert [replied(rig) for _ in range(3)] == [(0,)] * 3
    assert rig.slots['prod'].policy == NEW
    assert rig.drop('wrong_policy') == 0
    assert rig.replicas['/p1'].is_ready
    # no session was opened again
    assert rig.robots.current('robot').places == {'prod': ('/p1',)}
    assert rig.replicas['/p1'].session_losses == 0


def test_a_chunk_from_before_the_swap_that_comes_after_the_status_is_passed_on(rig):
    raw = rig.request()
    rig.now_ns += MS
    swaps(rig)
    rig.answer('/p1', raw, policy=OLD)
    assert taken(rig) == (0,)
    assert rig.slots['prod'].policy == NEW
    assert replied(rig, CHANGED) == (CHANGED,)
    assert rig.drop('wrong_policy') == 0


def test_the_chunk_before_the_swap_begins_an_episode_that_the_new_policy_continues(rig):
    raw = rig.request(episode='next')
    rig.now_ns += MS
    swaps(rig)
    rig.answer('/p1', raw, policy=OLD)
    assert taken(rig) == (0,)
    raw = rig.request(episode='next')
    rig.now_ns += MS
    rig.answer('/p1', raw, policy=NEW, flags=CHANGED)
    assert taken(rig) == (CHANGED,)


def test_a_swap_between_two_episodes_is_told_too(rig):
    """The robot agreed on the old policy, and takes an undeclared one for a mistake."""
    swaps(rig)
    raw = rig.request(episode='next')
    rig.answer('/p1', raw, policy=NEW, flags=CHANGED)
    assert taken(rig) == (CHANGED,)
    raw = rig.request(episode='third')
    rig.answer('/p1', raw, policy=NEW)
    assert taken(rig) == (0,)


def test_swapping_back_is_told(rig):
    swaps(rig)
    assert replied(rig, CHANGED) == (CHANGED,)
    rig.now_ns += SECOND
    assert replied(rig, CHANGED, policy=OLD) == (CHANGED,)
    swaps(rig, policy=OLD)
    assert replied(rig, policy=OLD) == (0,)


def test_a_policy_that_no_server_declares_is_refused(rig):
    assert [type(each) for each in replied(rig)] == [str]
    assert rig.drop('wrong_policy') == 1
    assert rig.slots['prod'].policy == OLD


def test_a_server_that_was_reloaded_has_lost_its_sessions(rig):
    rig.learn('/p1', NEW)
    assert rig.replicas['/p1'].session_losses == 1
    rig.learn('/p1', NEW, active=False)
    swaps(rig, policy='prod@3')
    assert rig.replicas['/p1'].session_losses == 3


# several replicas, one after the other


@pytest.fixture
def pair() -> Rig:
    return running(TWO, OLD)


@pytest.mark.parametrize('first', ['chunk', 'status'])
def test_in_the_middle_of_a_rolling_swap_the_others_answer_with_the_old_policy(pair, first):
    raw = pair.request()
    (asked,) = pair.servers
    other = next(name for name in TWO['prod'] if name != asked)
    pair.now_ns += MS
    if first == 'status':
        swaps(pair, asked)
    # its first chunk of the new policy is not for this robot yet
    pair.answer(asked, raw, policy=NEW, flags=CHANGED)
    assert pair.servers == [other]
    pair.answer(other, raw, policy=OLD)
    assert taken(pair) == (0,)
    assert pair.slots['prod'].is_healthy
    assert pair.replicas[asked].state is ReplicaState.POLICY_MISMATCH
    # the whole episode stays with the old policy, until the last server has swapped
    for _ in range(3):
        raw = pair.request()
        assert pair.servers == [other]
        pair.answer(other, raw, policy=OLD)
        assert taken(pair) == (0,)
    raw = pair.request()
    pair.servers.clear()
    pair.answer(other, raw, policy=NEW, flags=CHANGED)
    assert taken(pair) == (CHANGED,)
    assert pair.slots['prod'].policy == NEW
    assert all(replica.is_ready for replica in pair.slots['prod'])


def test_a_replica_that_flags_what_the_robot_knows_already_is_not_heard_twice(pair):
    raw = pair.request()
    (asked,) = pair.servers
    other = next(name for name in TWO['prod'] if name != asked)
    for server in TWO['prod']:
        swaps(pair, server)
    pair.answer(asked, raw, policy=NEW, flags=CHANGED)
    assert taken(pair) == (CHANGED,)
    pair.set_available(asked, False)
    raw = pair.request()
    assert pair.servers == [other]
    # the first chunk of the other server after its swap
    pair.answer(other, raw, policy=NEW, flags=CHANGED | Flag.PREFIX_IGNORED)
    assert taken(pair) == (Flag.PREFIX_IGNORED,)


def test_a_late_chunk_of_the_old_policy_never_follows_one_of_the_new(pair):
    """Two servers have swapped; a hedge of the old policy is under way."""
    raw = pair.request()
    (asked,) = pair.servers
    pair.now_ns += MS
    for server in TWO['prod']:
        swaps(pair, server)
    pair.answer(asked, raw, policy=NEW, flags=CHANGED)
    assert taken(pair) == (CHANGED,)
    pair.now_ns += MS
    raw = pair.request()
    (asked,) = pair.servers
    pair.replicas[asked].swapped_ns = pair.now_ns
    pair.answer(asked, raw, policy=OLD)
    other = next(name for name in TWO['prod'] if name != asked)
    assert pair.servers == [other]
    # the server itself is not suspected for what it computed before
    assert pair.replicas[asked].is_ready
    pair.answer(other, raw, policy=NEW)
    assert taken(pair) == (0,)


# verdicts and requirements follow the policy


@pytest.fixture
def split() -> Rig:
    """Two slots, and a robot whose episode runs in slot b."""
    slots = {'a': ('/a',), 'b': ('/b',)}
    return running(slots, 'a@1', 'b@7', episode=episode_in('b'))


def in_b(rig: Rig, policy: str, flags: int = CHANGED) -> list[str]:
    """Answer the next request in slot b; return who was asked after that."""
    raw = rig.request(episode=episode_in('b'))
    assert rig.servers == ['/b']
    rig.answer('/b', raw, policy=policy, flags=flags)
    rig.last = raw
    return rig.servers


def test_a_barred_policy_that_is_swapped_in_drives_nobody(split):
    split.slots['b'].verdicts['bad@8'] = VerdictRecord(
        PolicyVerdict.ROLLED_BACK, 'rolled back', leave_by_ns=split.now_ns + 60 * SECOND
    )
    assert in_b(split, 'bad@8') == ['/a']
    split.answer('/a', split.last)
    assert [(flags, slot) for _, flags, slot in split.replies] == [(CHANGED, 'a')]


def test_a_policy_that_may_not_begin_takes_over_no_running_episode(split):
    swaps(split, '/b', 'new@8')
    split.slots['b'].unmet_requirements = 'no record of the gate'
    assert in_b(split, 'new@8') == ['/a']
    split.answer('/a', split.last)
    assert [(flags, slot) for _, flags, slot in split.replies] == [(CHANGED, 'a')]


def test_without_another_slot_its_chunks_are_withheld_and_the_reason_is_told(split):
    split.set_available('/a', False)
    swaps(split, '/b', 'new@8')
    split.slots['b'].unmet_requirements = 'no record of the gate'
    assert in_b(split, 'new@8') == []
    assert split.replies == []
    assert 'running episodes leave it: no record of the gate' in split.texts[0]
    ((_, status, _),) = split.outside.failures or [(None, Status.NO_SLOT, '')]
    assert status == Status.NO_SLOT


def test_what_a_policy_lacks_ends_no_episode_that_it_drives_already(split):
    split.slots['b'].unmet_requirements = 'a record that has gone'
    assert in_b(split, 'b@7', flags=0) == []
    assert [(flags, slot) for _, flags, slot in split.replies] == [(0, 'b')]


def test_a_replaced_policy_that_a_verdict_bars_finishes_nothing_late(split):
    raw = split.request(episode=episode_in('b'))
    split.servers.clear()
    split.now_ns += MS
    split.slots['b'].verdicts['b@7'] = VerdictRecord(
        PolicyVerdict.ROLLED_BACK, 'rolled back', leave_by_ns=split.now_ns
    )
    swaps(split, '/b', 'good@8')
    split.answer('/b', raw, policy='b@7')
    assert split.replies == []
