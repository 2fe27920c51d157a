# SPDX-License-Identifier: Apache-2.0
"""Verdicts, drains and shares at the dispatcher: what a robot gets when slots may not answer."""

from __future__ import annotations

import pytest
from support.router.dispatch_rig import episode_in, MS, Rig, ROUTING, SECOND, TIMEOUT_NS

from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.router.data_path.dispatch_step import DispatchStep
from lerobot_serve.router.placement.eligibility import PolicyVerdict
from lerobot_serve.router.replicas.slot import VerdictRecord

SINGLE = {'a': ('/a1',), 'b': ('/b1',)}
IN_A, IN_B = episode_in('a'), episode_in('b')
NEVER = 2**62


@pytest.fixture
def rig():
    made = Rig(SINGLE)
    made.robot()
    return made


def roll_back(rig: Rig, *, now: bool = False) -> None:
    leave_by_ns = rig.now_ns if now else rig.now_ns + 60 * SECOND
    rig.slots['b'].verdicts['b@7'] = VerdictRecord(
        PolicyVerdict.ROLLED_BACK, 'arm hit the table', leave_by_ns
    )


def refusals(rig: Rig) -> list[tuple[Status, str]]:
    found = [(status, text) for _, status, text in rig.outside.failures]
    rig.outside.failures.clear()
    return found


def ask(rig: Rig, episode: str) -> list[str]:
    """Ask once; return who was asked, and let that answer."""
    raw = rig.request(episode=episode)
    servers = rig.servers
    for server in servers:
        rig.answer(server, raw)
    return servers


def test_a_rolled_back_candidate_gets_no_episode_whatever_happens_to_the_champion(rig):
    """R1: the champion's server was stopped for 6 s, and its episodes went to the candidate."""
    assert ask(rig, IN_A) == ['/a1']
    roll_back(rig)
    # the champion is silent: request after request times out
    for number in range(8):
        rig.request(episode=IN_A)
        rig.advance(TIMEOUT_NS)
        assert set(rig.servers) <= {'/a1'}, number
    rig.forget()
    rig.set_available('/a1', False)
    for number in range(8):
        for episode in (IN_A, f'new-{number}', ''):
            assert ask(rig, episode) == []
            ((status, text),) = refusals(rig)
            assert status == Status.NO_SLOT
            assert 'arm hit the table' in text and '/a1: server unavailable' in text
            assert rig.sticky.find(f'new-{number}') is None
    rig.set_available('/a1', True)
    rig.slots['a'].health.mark_healthy()
    rig.replicas['/a1'].health.mark_healthy()
    assert ask(rig, IN_A) == ['/a1']
    # the same episode: it kept its slot all the time
    assert rig.replies[-1][1:] == (0, 'a')


@pytest.mark.parametrize('by', ['share', 'trial'])
@pytest.mark.parametrize('spare', [False, True])
def test_more_than_its_share_goes_to_a_slot_only_where_it_is_declared(by, spare):
    rig = Rig(SINGLE)
    rig.robot()
    if by == 'share':
        rig.rules(split_percent=100)
    else:
        rig.slots['b'].is_on_trial = True
    rig.rules(failover_slots=frozenset('b') if spare else frozenset())
    episode = episode_in('a')
    ask(rig, episode)
    rig.set_available('/a1', False)
    assert ask(rig, episode) == ['/b1'] * spare
    assert ask(rig, episode_in('a', salt=1)) == ['/b1'] * spare
    assert len(refusals(rig)) == 2 * (not spare)
    if spare:
        assert rig.replies[1][1] & Flag.POLICY_CHANGED


def test_running_episodes_end_where_they_are_within_the_time_that_is_given(rig):
    assert ask(rig, IN_B) == ['/b1']
    roll_back(rig)
    assert ask(rig, IN_B) == ['/b1'], 'it runs to its end'
    assert ask(rig, episode_in('b', salt=1)) == ['/a1'], 'a new one does not begin there'
    rig.forget()
    ask(rig, IN_B)
    rig.advance(60 * SECOND)
    rig.forget()
    assert ask(rig, IN_B) == ['/a1']
    ((_, flags, slot),) = rig.replies
    assert (slot, flags & Flag.POLICY_CHANGED) == ('a', Flag.POLICY_CHANGED)


@pytest.mark.parametrize('how', ['verdict', 'drain'])
def test_running_episodes_leave_with_their_next_request_when_that_is_asked_for(rig, how):
    ask(rig, IN_B)
    rig.forget()
    if how == 'verdict':
        roll_back(rig, now=True)
    else:
        rig.drain('b', after_s=0)
    assert ask(rig, IN_B) == ['/a1']
    ((_, flags, slot),) = rig.replies
    assert (slot, flags & Flag.POLICY_CHANGED) == ('a', Flag.POLICY_CHANGED)


def test_an_answer_that_comes_after_its_episode_left_reaches_no_robot(rig):
    raw = rig.request(episode=IN_B)
    assert rig.servers == ['/b1']
    roll_back(rig, now=True)
    rig.answer('/b1', raw)
    assert rig.replies == []
    assert rig.drop('slot_left') == 1
    # the same bytes go to the slot that may answer
    assert rig.servers == ['/a1']
    rig.answer('/a1', raw)
    ((_, flags, slot),) = rig.replies
    assert (slot, flags & Flag.POLICY_CHANGED) == ('a', Flag.POLICY_CHANGED)


def test_an_answer_that_may_reach_no_robot_and_no_other_slot_is_refused(rig):
    raw = rig.request(episode=IN_B)
    rig.forget()
    rig.set_available('/a1', False)
    roll_back(rig, now=True)
    rig.answer('/b1', raw)
    assert rig.replies == []
    ((status, text),) = refusals(rig)
    assert (status, 'arm hit the table' in text) == (Status.NO_SLOT, True)
    assert len(rig.table.in_flight) == 0


def test_no_second_try_and_no_fail_over_within_a_slot_that_is_left():
    rig = Rig()
    rig.robot()
    rig.warm_up('b')
    raw = rig.request(episode=IN_B)
    rig.forget()
    roll_back(rig, now=True)
    # late enough for a second try, then over
    rig.advance(TIMEOUT_NS + 10 * MS)
    assert not {'/b1', '/b2'} & set(rig.servers)
    assert raw


def test_a_slot_that_is_barred_is_probed_and_its_answer_reaches_no_robot(rig):
    roll_back(rig)
    rig.slots['b'].health.mark_unhealthy('timeout', rig.now_ns)
    rig.advance(5 * SECOND)
    raw = rig.request(episode=IN_A)
    assert sorted(rig.servers) == ['/a1', '/b1']
    rig.answer('/b1', raw)
    assert rig.replies == []
    rig.answer('/a1', raw)
    assert [slot for _, _, slot in rig.replies] == ['a']


def test_where_all_are_gone_the_robot_may_go_on_with_its_own_servers(rig):
    rig.set_available('/a1', False)
    rig.set_available('/b1', False)
    ask(rig, 'new')
    ((status, _),) = refusals(rig)
    assert status == Status.NO_SESSION
    assert rig.drop('unanswered') == 1 and rig.drop('no_slot') == 0


def test_the_split_is_not_what_counts_for_the_slot_of_an_episode_that_runs(rig):
    ask(rig, IN_B)
    rig.rules(split_percent=100)
    rig.forget()
    assert ask(rig, IN_B) == ['/b1']
    assert ROUTING.split_percent == 50


@pytest.mark.parametrize('known', ['b@7', 'b@2', ''])
def test_a_barred_policy_ends_the_episodes_that_it_is_known_to_drive_and_no_others(rig, known):
    """A server loads a barred policy while episodes of another one run in its slot."""
    if known:
        rig.learn('/b1', known)
        assert ask(rig, IN_B) == ['/b1']
    else:
        # placed, and not answered yet
        rig.request(episode=IN_B)
        rig.forget()
    rig.outside.replies.clear()
    roll_back(rig)
    rig.learn('/b1', 'b@7')
    raw = rig.request(episode=IN_B)
    assert rig.servers == ['/b1']
    rig.answer('/b1', raw, policy='b@7')
    stays = known == 'b@7'
    assert len(rig.replies) == stays
    assert (rig.drop('slot_left') == 0) == stays


@pytest.mark.parametrize('how', ['verdict', 'drain'])
@pytest.mark.parametrize('status', [Status.OK, Status.POLICY_ERROR, Status.TOO_LATE])
def test_a_hedge_in_the_slot_that_a_request_has_left_replies_to_nobody(how, status):
    rig = Rig({'a': ('/a1',), 'b': ('/b1', '/b2')})
    rig.robot()
    for _ in range(40):
        rig.round_trip(episode=IN_B)
    rig.forget()
    raw = rig.request(episode=IN_B)
    (first,) = rig.servers
    rig.advance(20 * MS)
    (second,) = rig.servers
    assert {first, second} == {'/b1', '/b2'}
    if how == 'verdict':
        roll_back(rig, now=True)
    else:
        rig.drain('b', after_s=0.0)
    rig.answer(first, raw)
    assert rig.servers == ['/a1']
    chunks = rig.stats.slot('a').chunks
    rig.answer(second, raw, status)
    assert (rig.replies, refusals(rig), rig.servers) == ([], [], [])
    assert (rig.drop('slot_left'), rig.drop('late_reply')) == (2, 0)
    assert rig.stats.slot('a').chunks == chunks
    rig.answer('/a1', raw)
    ((_, flags, slot),) = rig.replies
    assert (slot, flags & Flag.POLICY_CHANGED) == ('a', Flag.POLICY_CHANGED)
    assert rig.stats.slot('a').chunks == chunks + 1


def test_a_failure_in_the_new_slot_waits_for_no_hedge_of_the_old_one():
    rig = Rig({'a': ('/a1',), 'b': ('/b1', '/b2')})
    rig.robot()
    for _ in range(40):
        rig.round_trip(episode=IN_B)
    rig.forget()
    raw = rig.request(episode=IN_B)
    rig.advance(20 * MS)
    first, _ = rig.servers
    roll_back(rig, now=True)
    rig.answer(first, raw)
    rig.answer('/a1', raw, Status.POLICY_ERROR)
    assert [slot for _, _, slot in rig.replies] == ['a']


def test_a_silent_replica_that_replies_after_its_requests_have_moved_is_not_relayed(rig):
    rig.rules(failover_slots=frozenset('ab'))
    ask(rig, IN_B)
    rig.forget()
    raw = rig.request(episode=IN_B)
    rig.servers.clear()
    replica = rig.replicas['/b1']
    with rig.table.lock:
        replica.health.mark_unhealthy('unresponsive: repeated late replies', rig.now_ns)
    step = DispatchStep(rig.now_ns)
    with rig.table.lock:
        rig.dispatcher._reassign_pending(replica, step)
    step.run()
    assert rig.servers == ['/a1']
    rig.answer('/b1', raw)
    assert (rig.replies, rig.drop('slot_left')) == ([], 1)
    rig.answer('/a1', raw)
    assert [slot for _, _, slot in rig.replies] == ['a']
