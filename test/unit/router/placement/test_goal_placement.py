# SPDX-License-Identifier: Apache-2.0
"""Requests without a session: they follow the split and the episode, and ask whoever is ready."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.router.dispatch_rig import episode_in, Rig

from lerobot_serve.router.placement.eligibility import PolicyVerdict
from lerobot_serve.router.placement.episode_placement import NoSlotAvailable
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import VerdictRecord
from lerobot_serve.trace.format.records import RecordIds

SERVERS = ('/a1', '/a2', '/b1', '/b2')
# who comes and goes together
GROUPS = (*((server,) for server in SERVERS), SERVERS[:2], SERVERS[2:])
EPISODES = ('', 'one', 'two')
HAPPENINGS = st.lists(
    st.tuples(st.just('ask'), st.sampled_from(EPISODES), st.integers(0, 100))
    | st.tuples(st.just('there'), st.sampled_from(GROUPS), st.booleans())
    | st.tuples(st.just('drain'), st.sampled_from('ab'), st.booleans()),
    min_size=10,
    max_size=25,
)


def place(rig: Rig, episode_id: str) -> tuple[Placement, Replica]:
    return rig.placement.place_goal(RecordIds('robot', 1, 1, episode_id), rig.now_ns)


def down(rig: Rig, *servers: str) -> None:
    for server in servers:
        rig.set_available(server, False)


@given(HAPPENINGS)
@settings(max_examples=60, deadline=None)
def test_whoever_is_chosen_is_ready_and_an_episode_stays_while_it_can(happenings):
    rig = Rig()
    homes = {}
    for what, name, value in happenings:
        if what == 'there':
            for server in name:
                rig.set_available(server, value)
        elif what == 'drain':
            health = rig.slots[name].health
            health.mark_unhealthy('a test', rig.now_ns) if value else health.mark_healthy()
        else:
            check_one(rig, homes, name, value)


def check_one(rig: Rig, homes: dict, name: str, percent: int) -> None:
    home, wanted = homes.get(name), 'a' if bucket(name or 'robot:1:1') < percent else 'b'
    able = {slot.name for slot in rig.slots.values() if slot.has_ready_replica}
    healthy = {slot.name for slot in rig.slots.values() if slot.is_healthy}
    try:
        rig.sticky.split_percent = percent
        placement, replica = place(rig, name)
    except NoSlotAvailable:
        assert not healthy
        assert home not in able
        assert rig.sticky.find(name) is None or home
        return
    assert replica.is_ready
    assert placement.slot == replica.slot
    assert placement.missing_episode_id == (not name)
    if home:
        assert placement.slot == home or home not in able
        assert placement.moved or placement.slot == home
    elif wanted in healthy:
        assert (placement.slot, placement.reason) == (wanted, '')
    else:
        assert placement.slot in (healthy or able)
        assert placement.reason
    if name:
        homes[name] = placement.slot


def test_the_least_loaded_replica_is_asked():
    rig = Rig()
    rig.replicas['/a1'].preferring_sessions = 3
    _, replica = place(rig, episode_in('a'))
    assert replica.name == '/a2'


def test_an_episode_that_has_to_leave_says_why_and_counts_as_moved():
    rig, episode = Rig(), episode_in('b')
    assert place(rig, episode)[0].slot == 'b'
    down(rig, '/b1', '/b2')
    placement, replica = place(rig, episode)
    assert (placement.slot, placement.moved, placement.sticky) == ('a', True, False)
    assert 'slot b cannot reply: /b1: server unavailable' in placement.reason
    assert replica.slot == 'a'
    # and stays
    rig.set_available('/b1', True)
    again, _ = place(rig, episode)
    assert (again.slot, again.sticky) == ('a', True)


def test_nobody_ready_says_whom_to_start_and_remembers_nothing():
    rig = Rig()
    down(rig, *SERVERS)
    with pytest.raises(
        NoSlotAvailable, match=r'slot b: /b1: server unavailable.*slot a: /a1: server unavailable'
    ):
        place(rig, 'episode')
    assert rig.sticky.find('episode') is None


def test_one_slot_needs_no_split():
    rig = Rig({'prod': ('/one',)})
    placement, replica = place(rig, 'episode')
    assert (placement.slot, placement.split_percent, replica.name) == ('prod', None, '/one')


def test_an_answer_is_looked_at_once_more_before_a_robot_gets_it():
    rig = Rig()
    places, slot = rig.placement, rig.slots['b']
    assert places.goal_refusal('b', slot.policy, rig.now_ns) == ''
    assert 'the reply is of other@1, and slot b' in places.goal_refusal('b', 'other@1', rig.now_ns)
    assert 'no slot' in places.goal_refusal('c', slot.policy, rig.now_ns)
    slot.verdicts[slot.policy] = VerdictRecord(
        PolicyVerdict.ROLLED_BACK, 'it hit the table', rig.now_ns + 1
    )
    # running episodes leave at that time, no sooner
    assert places.goal_refusal('b', slot.policy, rig.now_ns) == ''
    assert 'it hit the table' in places.goal_refusal('b', slot.policy, rig.now_ns + 1)


@pytest.mark.parametrize('goals', [1, 3])
def test_an_episode_that_begins_with_a_goal_counts_from_its_first_request(goals):
    rig = Rig(robot='robot')
    episode = episode_in('b')
    for _ in range(goals):
        place(rig, episode)
    assert rig.stats.take_events() == ()
    # an episode of goals alone has no client, and so no end
    assert not rig.stats.record_outcome(episode, 1).is_accepted
    for _ in range(2):
        rig.round_trip(episode=episode)
    assert rig.stats.record_outcome(episode, 1).is_accepted
    events = [(episode, what, 'candidate', 'robot') for what in ('begun', 'success')]
    assert list(rig.stats.take_events()) == events
    assert (rig.stats.slot('b').episodes, rig.stats.slot('b').ended['success']) == (1, 1)


def test_an_episode_that_ran_before_a_restart_is_no_new_one_by_a_goal():
    rig = Rig(robot='robot')
    episode = episode_in('b')
    rig.sticky.add(episode, episode, 'b')
    place(rig, episode)
    rig.round_trip(episode=episode)
    assert rig.stats.take_events() == ()
    assert rig.stats.slot('b').episodes == 0


def test_an_episode_that_goals_have_moved_counts_for_no_slot():
    rig = Rig(robot='robot')
    episode = episode_in('b')
    place(rig, episode)
    down(rig, '/b1', '/b2')
    placement, _ = place(rig, episode)
    assert placement.moved
    rig.round_trip(episode=episode)
    assert rig.stats.take_events() == ()


def test_goals_without_requests_need_bounded_memory():
    rig = Rig(capacity=10)
    for number in range(100):
        place(rig, f'episode {number}')
    assert len(rig.stats._of_goals) == 10
