# SPDX-License-Identifier: Apache-2.0
"""An episode keeps its slot; when it has to leave, its next chunk says so."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.router.dispatch_rig import episode_in, MS, Rig, SECOND, TIMEOUT_NS

from lerobot_serve.contract.schema import Flag, StateClass, Status
from lerobot_serve.router.data_path.dispatch_step import DispatchStep
from lerobot_serve.router.placement.eligibility import PolicyVerdict
from lerobot_serve.router.replicas.slot import VerdictRecord

SINGLE = {'a': ('/a1',), 'b': ('/b1',)}
IN_A, IN_B = episode_in('a'), episode_in('b')


@pytest.fixture
def rig():
    return Rig(SINGLE, robot='robot')


def got(rig: Rig, episode: str = IN_B, name: str = 'robot') -> tuple[str, int]:
    """Ask until actions come; return the slot and the flags of the chunk."""
    raw = rig.request(name, episode)
    for server in rig.servers:
        rig.answer(server, raw)
    ((_, flags, slot),) = rig.replies
    return slot, flags


def test_an_operators_drain_moves_nothing_that_runs(rig):
    got(rig)
    rig.drain('b')
    assert got(rig) == ('b', 0)
    assert got(rig, episode_in('b', 1)) == ('a', 0)


def test_a_running_episode_whose_placement_was_forgotten_still_leaves_its_slot():
    rig = Rig(SINGLE, capacity=1, robot='robot')
    rig.robot('other')
    assert got(rig) == ('b', 0)
    # the table has room for one
    got(rig, IN_A, 'other')
    assert rig.sticky.find(IN_B) is None
    rig.drain('b', after_s=0.0)
    assert got(rig) == ('a', Flag.POLICY_CHANGED)


def test_a_running_episode_whose_placement_was_forgotten_keeps_its_replica():
    rig = Rig({'a': ('/a1',), 'b': ('/b1', '/b2')}, capacity=1, robot='robot')
    rig.robot('other')
    rig.request(episode=IN_B)
    (first,) = rig.servers
    rig.request('other', IN_A)
    rig.forget()
    # a new episode would go to the other one
    rig.replicas[first].preferring_sessions += 5
    rig.request(episode=IN_B)
    assert rig.servers == [first]


def test_a_request_without_an_episode_goes_to_the_least_loaded_replica():
    rig = Rig({'prod': ('/p1', '/p2')}, robot='robot')
    rig.request(episode='')
    (first,) = rig.servers
    rig.replicas[first].preferring_sessions += 5
    rig.request(episode='')
    (second,) = rig.servers
    assert second != first


def test_an_episode_leaves_a_slot_that_is_gone(rig):
    got(rig)
    rig.set_available('/b1', False)
    assert got(rig) == ('a', Flag.POLICY_CHANGED)
    assert got(rig) == ('a', 0)
    rig.set_available('/b1', True)
    assert got(rig) == ('a', 0)
    (*_, (_, _, placement)) = rig.outside.decisions
    assert placement.moved
    assert placement.reason == 'slot b cannot reply: /b1: server unavailable'
    assert (rig.stats.slot('b').moved, rig.stats.slot('a').episodes) == (1, 0)


def test_it_leaves_a_drained_slot_only_with_a_failed_answer_of_its_own(rig):
    rig.robot('other')
    got(rig)
    got(rig, episode_in('b', 1), 'other')
    for _ in range(5):
        raw = rig.request('other', episode_in('b', 1))
        rig.forget()
        rig.answer('/b1', raw, Status.NOT_FINITE)
    assert not rig.slots['b'].is_healthy
    # the fifth was asked of slot a at once
    assert rig.servers == ['/a1']
    rig.answer('/a1', raw)
    assert [flags for _, flags, _ in rig.replies] == [Flag.POLICY_CHANGED]
    assert got(rig) == ('b', 0)


def test_a_request_that_nobody_answers_in_time_goes_to_the_other_slot_at_once(rig):
    got(rig)
    raw = rig.request(episode=IN_B)
    rig.forget()
    rig.advance(TIMEOUT_NS)
    assert rig.servers == ['/a1']
    rig.answer('/a1', raw)
    assert rig.replies == [(2, Flag.POLICY_CHANGED, 'a')]


def test_an_episode_stays_where_the_other_slot_takes_none(rig):
    got(rig)
    rig.drain('a')
    rig.set_available('/b1', False)
    rig.request(episode=IN_B)
    assert len(rig.texts) == 1
    assert rig.robots.current('robot').slot == 'b'
    rig.set_available('/b1', True)
    assert got(rig) == ('b', 0)


def test_a_request_that_nobody_answers_in_time_goes_to_no_slot_that_takes_none(rig):
    got(rig)
    rig.drain('a')
    rig.request(episode=IN_B)
    rig.forget()
    rig.advance(TIMEOUT_NS)
    assert (rig.servers, rig.drop('timeout')) == ([], 1)
    assert len(rig.outside.decisions) == 1
    assert rig.robots.current('robot').slot == 'b'
    assert rig.stats.slot('b').moved == 0


def test_what_was_told_is_told_again_only_when_it_did_not_arrive(rig):
    got(rig)
    rig.set_available('/b1', False)
    raw = rig.request(episode=IN_B)
    rig.answer('/a1', raw, Status.BAD_OBSERVATION)
    rig.forget()
    assert got(rig) == ('a', Flag.POLICY_CHANGED)
    assert got(rig) == ('a', 0)


def test_a_new_session_of_the_same_robot_is_still_told(rig):
    got(rig)
    rig.set_available('/b1', False)
    rig.request(episode=IN_B)
    rig.forget()
    old, new = rig.robots.current('robot'), rig.robot(epoch=2)
    new.resume(old)
    raw = rig.request(episode=IN_B, epoch=2)
    rig.answer('/a1', raw)
    assert [flags for _, flags, _ in rig.replies] == [Flag.POLICY_CHANGED]


def test_a_robot_that_a_router_does_not_know_yet_is_told_that_its_episode_moved(rig):
    got(rig)
    rig.set_available('/b1', False)
    got(rig)
    rig.robot('other')
    assert got(rig, IN_B, 'other') == ('a', Flag.POLICY_CHANGED)
    assert got(rig, IN_B, 'other') == ('a', 0)


@pytest.mark.parametrize('policy_b', ['b@7', 'a@1'])
def test_two_robots_of_one_episode_are_both_told_also_where_both_slots_have_one_policy(
    rig, policy_b
):
    rig.robot('other')
    rig.learn('/b1', policy_b)
    got(rig)
    got(rig, IN_B, 'other')
    rig.set_available('/b1', False)
    assert got(rig) == ('a', Flag.POLICY_CHANGED)
    rig.set_available('/b1', True)
    assert got(rig, IN_B, 'other') == ('a', Flag.POLICY_CHANGED)


def test_a_slot_that_changes_its_policy_says_so_to_episodes_that_run(rig):
    got(rig)
    rig.learn('/b1', 'b@2')
    assert got(rig) == ('b', Flag.POLICY_CHANGED)
    assert got(rig) == ('b', 0)
    rig.learn('/b1', 'b@3')
    assert got(rig, episode_in('b', 1)) == ('b', 0)


def test_a_new_episode_is_told_nothing_of_the_one_before(rig):
    got(rig)
    rig.set_available('/b1', False)
    rig.request(episode=IN_B)
    rig.forget()
    assert got(rig, 'another') == ('a', 0)


def test_a_failure_of_the_episode_before_moves_no_new_one(rig):
    raw = rig.request(episode=IN_B)
    rig.answer('/b1', raw, Status.NOT_FINITE)
    rig.forget()
    # drained by others before the first answer of the new one
    rig.request(episode=episode_in('b', 1))
    rig.slots['b'].health.mark_unhealthy('x', rig.now_ns)
    raw = rig.request(episode=episode_in('b', 1))
    assert rig.servers[-1] == '/b1'


def test_requests_without_an_episode_are_placed_one_by_one_and_never_moved(rig):
    slots = {got(rig, '')[0] for _ in range(40)}
    assert slots == {'a', 'b'}
    assert all(p.missing_episode_id and not p.sticky for _, _, p in rig.outside.decisions)
    rig.set_available('/b1', False)
    assert {got(rig, '')[0] for _ in range(20)} == {'a'}
    assert rig.stats.slot('b').moved == 0
    assert rig.stats.slot('a').episodes == 0


def test_where_nothing_is_healthy_somebody_is_asked_all_the_same(rig):
    rig.slots['a'].health.mark_unhealthy('x', rig.now_ns)
    rig.slots['b'].health.mark_unhealthy('x', rig.now_ns)
    assert got(rig)[0] == 'b'
    rig.set_available('/b1', False)
    assert got(rig, episode_in('b', 1))[0] == 'a'
    # nobody is ready any more: one that failed lately is better than nobody
    rig.replicas['/a1'].health.mark_unhealthy('x', rig.now_ns)
    assert got(rig, episode_in('b', 2))[0] == 'a'


def test_a_robot_without_a_session_in_a_slot_has_its_episodes_in_the_other():
    rig = Rig(SINGLE)
    rig.robot(places={'a': ('/a1',)})
    assert got(rig) == ('a', 0)
    ((_, _, placement),) = rig.outside.decisions
    assert placement.reason == 'slot b takes no episodes: no session of this client'
    assert not placement.moved


def test_episodes_that_are_forgotten_stay_where_they_run():
    rig = Rig(SINGLE, capacity=1)
    for number in range(3):
        rig.robot(f'robot-{number}')
    episodes = [episode_in('b', number) for number in range(3)]
    for split in (50, 100, 100):
        rig.rules(split_percent=split)
        for number in range(3):
            assert got(rig, episodes[number], f'robot-{number}') == ('b', 0)


def test_a_new_episode_begins_where_it_is_least_busy_and_stays_there():
    rig = Rig({'prod': ('/p1', '/p2')})
    for number in range(10):
        rig.robot(f'robot-{number}', {'prod': ('/p1', '/p2')})
    for number in range(10):
        rig.round_trip(f'robot-{number}', f'episode-{number}')
    assert [rig.replicas[name].preferring_sessions for name in ('/p1', '/p2')] == [5, 5]
    before = {r.request.client_id: r.places['prod'][0] for r in rig.robots}
    rig.replicas['/p1'].preferring_sessions += 7
    for number in range(10):
        name = f'robot-{number}'
        assert rig.round_trip(name, f'episode-{number}') == before[name]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 7)), min_size=1, max_size=60))
def test_no_sequence_of_splits_moves_an_episode(script):
    rig = Rig(SINGLE, robot='robot')
    where: dict[int, str] = {}
    for split, number in script:
        rig.rules(split_percent=split)
        slot, flags = got(rig, f'episode-{number}')
        assert (where.setdefault(number, slot), flags) == (slot, 0)
        rig.advance(MS)
    rig.advance(SECOND)
    assert rig.stats.slot('a').moved == rig.stats.slot('b').moved == 0


@pytest.mark.parametrize('left', [StateClass.RECURRENT, StateClass.CHUNK_STATELESS])
@pytest.mark.parametrize('next_one', [StateClass.RECURRENT, StateClass.CHUNK_STATELESS])
def test_state_is_lost_with_the_policy_that_had_one(left, next_one):
    rig = Rig(SINGLE, classes={'b': left, 'a': next_one}, robot='robot')
    assert got(rig) == ('b', 0)
    rig.set_available('/b1', False)
    lost = Flag.STATE_LOST if left is StateClass.RECURRENT else 0
    assert got(rig) == ('a', Flag.POLICY_CHANGED | lost)
    assert got(rig) == ('a', 0)


@pytest.mark.parametrize('next_one', [StateClass.RECURRENT, StateClass.CHUNK_STATELESS])
def test_state_at_a_server_that_nobody_knows_any_more_is_lost(next_one):
    rig = Rig(SINGLE, classes={'b': next_one}, robot='robot')
    got(rig)
    rig.robots.current('robot').server = '/gone'
    assert got(rig) == ('b', Flag.STATE_LOST)


def test_the_wait_for_a_slot_does_not_count_for_the_next_one(rig):
    for number in range(20):
        rig.request(episode=episode_in('b', salt=number))
        rig.advance(TIMEOUT_NS)
        # the other slot answers in time
        rig.advance(20 * MS)
        rig.answer('/a1', rig.outside.sent[-1][1])
        rig.slots['b'].health.mark_healthy()
        rig.replicas['/b1'].health.mark_healthy()
    stats = rig.stats.slot('a')
    assert stats.chunks == 20
    assert stats.latency.percentile_ms(95) == 20.0
    # for an operator it is the time that the robot waited
    assert stats.buckets.sum_s == pytest.approx(20 * 1.02)


# verdicts, drains and shares at the dispatcher: what a robot gets when slots may not answer


NEVER = 2**62


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
    rig = Rig(SINGLE, robot='robot')
    if by == 'share':
        rig.rules(split_percent=100)
    else:
        rig.slots['b'].is_on_trial = True
    rig.rules(failover_slots='b' if spare else 'none')
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
    rig = Rig(robot='robot')
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
    rig = Rig({'a': ('/a1',), 'b': ('/b1', '/b2')}, robot='robot')
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
    rig = Rig({'a': ('/a1',), 'b': ('/b1', '/b2')}, robot='robot')
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
    rig.rules(failover_slots='both')
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
