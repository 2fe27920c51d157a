"""The sticky table: an episode keeps its slot for its whole life, whatever the split does."""

from __future__ import annotations

from builtin_interfaces.msg import Time
from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.router.messages import merge_replies, routing_decision
from lerobot_serve.router.split import bucket, slot
from lerobot_serve.router.sticky import Placement, StickyTable
from lerobot_serve_interfaces.srv import OpenSession


def test_a_new_episode_is_placed_by_the_split():
    placement = StickyTable(4).place('ep_42', 'request', 30)
    assert placement == Placement('ep_42', 29, 'a', 30, cached=False, degraded=False)


def test_a_changed_split_does_not_move_an_episode():
    table = StickyTable(4)
    table.place('ep_42', 'request', 30)
    assert table.place('ep_42', 'request', 0) == Placement('ep_42', 29, 'a', 30, True, False)
    assert table.place('ep_xyz', 'request', 0).slot == 'b'


def test_the_episode_that_was_not_used_for_longest_is_forgotten_first():
    table = StickyTable(2)
    for name in ('one', 'two', 'one', 'three'):
        table.place(name, 'request', 100)
    assert len(table) == 2
    assert table.place('one', 'request', 0).slot == 'a'
    assert table.place('two', 'request', 0).slot == 'b'


def test_without_an_episode_each_request_stands_alone_and_is_not_remembered():
    table = StickyTable(4)
    first = table.place('', 'ep_42', 30)
    assert first == Placement('ep_42', 29, 'a', 30, cached=False, degraded=True)
    assert table.place('', 'ep_42', 29).slot == 'b'
    assert table.place('', 'ep_xyz', 30).slot == 'b'
    assert len(table) == 0


places = st.tuples(st.sampled_from(['', 'a', 'b', 'c', 'd', 'e']), st.integers(0, 100))


@given(st.lists(places, max_size=60))
def test_no_change_of_split_moves_an_episode_that_is_known(script):
    table, known = StickyTable(8), {}
    for number, (episode, split_percent) in enumerate(script):
        placement = table.place(episode, f'request {number}', split_percent)
        if not episode:
            assert placement.degraded
            assert not placement.cached
            assert placement.slot == slot(bucket(f'request {number}'), split_percent)
            continue
        assert placement.cached == (episode in known)
        assert placement.slot == known.setdefault(episode, slot(bucket(episode), split_percent))
    assert len(table) == len(known)


@given(st.lists(st.integers(0, 30)), st.integers(1, 10))
def test_the_table_never_grows_beyond_its_capacity(numbers, capacity):
    table = StickyTable(capacity)
    for number in numbers:
        table.place(f'episode {number}', 'request', 50)
        assert len(table) <= capacity
    assert len(table) == min(capacity, len(set(numbers)))


@pytest.mark.parametrize(
    ('episode', 'reason'),
    [('ep_42', 'bucket 29 is below 30'), ('', 'no episode id; bucket 77 is not below 30')],
)
def test_a_decision_says_why(episode, reason):
    decision = routing_decision(
        StickyTable(1).place(episode, 'ep_xyz', 30),
        stamp=Time(),
        client_id='robot_1',
        episode_id=episode,
        policy='fake@0',
        server='/slot_a/policy_server',
    )
    assert decision.reason == reason
    assert decision.degraded == (not episode)
    assert decision.routing_key == (episode or 'ep_xyz')
    assert decision.split_percent == 30


def test_the_reply_of_two_slots_promises_what_both_hold():
    def reply(policy: str, **content: object) -> OpenSession.Response:
        return OpenSession.Response(accepted=True, policy=policy, warnings=[policy], **content)

    a = reply('act@0', policy_type='act', chunk_size=50, supports_rtc=True, load=0.5)
    b = reply('pi0@1', policy_type='pi0', chunk_size=30, supports_rtc=False, load=0.75)
    merged = merge_replies(a, b, '/policy_router/observation')
    assert merged.observation_topic == '/policy_router/observation'
    assert (merged.policy, merged.policy_type) == ('act@0|pi0@1', 'mixed')
    assert (merged.chunk_size, merged.supports_rtc, merged.load) == (30, False, 0.75)
    assert merged.warnings == ['slot a: act@0', 'slot b: pi0@1']
