# SPDX-License-Identifier: Apache-2.0
"""What the router makes of several slots' replies, and what it tells of a decision."""

from __future__ import annotations

from builtin_interfaces.msg import Time
from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.replacing import replace
from support.router.shadow_rig import key, World

from lerobot_serve.contract.records import Extension, OpenSessionResponse
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services import action_range
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.router.api.messages import routing_decision, shadow_divergence, shadow_summary
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions.merge_replies import merge_replies
from lerobot_serve.router.sessions.opening import SlotOpening
from lerobot_serve.trace.format.records import RecordIds

INBOX = '/policy_router/observation'
# the longest that the messages hold
LONG = 'x' * 1024


def reply(**fields: object) -> OpenSessionResponse:
    whole = {
        'accepted': True,
        'policy': 'act@1',
        'policy_type': 'act',
        'chunk_size': 50,
        'supports_rtc': True,
        'warmed_up': True,
        'observation_steps': 1,
        'observation_stride_steps': 1,
        'state_class': 1,
        'observation_topic': '/a/policy_server/observation',
        **fields,
    }
    return OpenSessionResponse(**whole)


def merge(a: OpenSessionResponse, b: OpenSessionResponse) -> OpenSessionResponse:
    return merge_replies({'a': SlotOpening(('/a',), a), 'b': SlotOpening(('/b',), b)}, INBOX)


@pytest.mark.parametrize('is_turned', [False, True])
def test_a_reply_of_two_slots_holds_in_both(is_turned):
    a = reply(load=0.25, predicted_delay_ms=10.0)
    b = reply(
        policy='pi0@2',
        policy_type='pi0',
        chunk_size=30,
        supports_rtc=False,
        load=0.75,
        predicted_delay_ms=5.0,
        state_class=3,
        warmed_up=False,
    )
    one = merge(b, a) if is_turned else merge(a, b)
    assert one.observation_topic == INBOX
    assert (one.chunk_size, one.supports_rtc, one.warmed_up) == (30, False, False)
    assert (one.load, one.predicted_delay_ms, one.state_class) == (0.75, 10.0, 3)
    assert one.policy_type == 'mixed'
    assert one.policy == ('pi0@2|act@1' if is_turned else 'act@1|pi0@2')


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=2, max_size=2),
    rtc=st.lists(st.booleans(), min_size=2, max_size=2),
)
def test_the_least_of_both_is_promised(sizes, rtc):
    one, other = (reply(chunk_size=n, supports_rtc=r) for n, r in zip(sizes, rtc, strict=True))
    whole = merge(one, other)
    assert (whole.chunk_size, whole.supports_rtc) == (min(sizes), all(rtc))
    assert whole.policy_type == 'act'


def test_slots_that_want_different_histories_are_refused_by_name():
    a, b = reply(observation_steps=2, observation_stride_steps=3), reply()
    with pytest.raises(SessionRefused) as refused:
        merge(a, b)
    assert refused.value.code == Refusal.NOT_READY
    assert 'slot a 2 observations 3 apart' in str(refused.value)
    assert 'slot b 1 observations 1 apart' in str(refused.value)
    same = merge(a, reply(observation_steps=2, observation_stride_steps=3))
    assert (same.observation_steps, same.observation_stride_steps) == (2, 3)


def test_a_slot_that_is_done_without_is_a_warning():
    refused = SessionRefused(Refusal.UNREACHABLE, 'slot b: it is not there')
    one = merge_replies(
        {'a': SlotOpening(('/a',), reply()), 'b': SlotOpening(refused=refused)}, INBOX
    )
    assert one.accepted
    assert list(one.warnings) == ['slot not used: slot b: it is not there']
    assert one.policy == 'act@1'


def test_warnings_name_their_slot_and_the_longest_still_fit():
    one = merge(reply(warnings=['slow', LONG]), reply(warnings=[LONG], policy='p' * 256))
    assert one.warnings[0] == 'slot a: slow'
    assert [warning[:8] for warning in one.warnings] == ['slot a: ', 'slot a: ', 'slot b: ']
    assert max(map(len, one.warnings)) == 1024
    assert len(one.policy) == 256


def ranged(low: float, high: float) -> dict[str, tuple[Extension]]:
    value = action_range.encode(ActionRange((low,), (high,)))
    return {'extensions': (Extension(action_range.KEY, value),)}


@pytest.mark.parametrize(
    ('a', 'b', 'expected'),
    [
        (ranged(-1, 1), ranged(-90, 0), ActionRange((-90.0,), (1.0,))),
        (ranged(-1, 1), {}, ActionRange((-1.0,), (1.0,))),
        ({}, ranged(-1, 1), ActionRange((-1.0,), (1.0,))),
        ({}, {}, None),
        (ranged(-1, 1), {'extensions': (Extension(action_range.KEY),)}, (-1.0, 1.0)),
    ],
)
def test_the_range_of_actions_holds_in_every_slot(a, b, expected):
    expected = ActionRange((expected[0],), (expected[1],)) if type(expected) is tuple else expected
    one = merge(reply(**a), reply(**b))
    assert action_range.find(one.extensions) == expected


PLACED = Placement('episode-1', 12, 'a', 50)


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({}, 'bucket 12 is below 50'),
        ({'bucket': 50, 'slot': 'b'}, 'bucket 50 is not below 50'),
        ({'missing_episode_id': True}, 'no episode id; bucket 12 is below 50'),
        ({'slot': 'prod', 'split_percent': None}, 'single slot'),
        (
            {'slot': 'b', 'reason': 'slot a takes no episodes: it is down'},
            'slot a takes no episodes: it is down; bucket 12 is below 50',
        ),
        ({'split_percent': 0, 'slot': 'b'}, 'bucket 12 is not below 0'),
        ({'reason': LONG}, LONG),
    ],
)
def test_a_decision_says_why(changes, reason):
    told = decision(replace(PLACED, **changes))
    assert told.reason == reason
    assert told.slot == changes.get('slot', 'a')


def test_a_decision_tells_all_that_was_placed():
    placed = replace(PLACED, sticky=True, moved=True, split_version=1 << 40)
    told = decision(placed, client_id='r' * 128, episode_id='e' * 128)
    assert (told.bucket, told.split_percent, told.routing_key) == (12, 50, 'episode-1')
    assert (told.sticky, told.moved, told.missing_episode_id) == (True, True, False)
    assert (told.policy, told.server, told.stamp.sec) == ('act@1', '/a', 7)
    assert told.split_version == 1 << 40
    assert (told.client_id, told.episode_id) == ('r' * 128, 'e' * 128)


def decision(placed: Placement, client_id: str = 'robot', episode_id: str = 'episode-1'):
    ids = RecordIds(client_id, episode_id=episode_id)
    return routing_decision(ids, placed, '/a', 'act@1', Time(sec=7))


def test_what_was_learned_of_a_shadow_fits_into_messages(tmp_path):
    world = World(tmp_path)
    (found,) = world.sample(7, shadow=((0.5, 0), (0.5, 0)))
    told = shadow_divergence(found, ('pan.pos', 'tilt.pos'), Time(sec=7))
    assert (told.client_id, told.episode_id, told.seq) == (*key(7)[:1], 'e-1', 7)
    assert (told.rows, told.limits_known) == (2, True)
    assert list(told.divergence_per_action) == [0.5, 0.0]
    assert list(told.action_names) == ['pan.pos', 'tilt.pos']
    summary = shadow_summary(world.book.summary(), LONG + 'x', {'b': 2, 'a': 1}, Time(sec=7))
    assert (summary.samples, summary.episodes) == (1, 1)
    assert summary.unmet_requirements == LONG
    assert [(drop.reason, drop.count) for drop in summary.dropped] == [('a', 1), ('b', 2)]
