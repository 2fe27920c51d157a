# SPDX-License-Identifier: Apache-2.0
"""The shadow's thread: it never matters to robots, whatever comes and whatever the shadow does."""

from __future__ import annotations

from pathlib import Path
import sys
import threading

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.replacing import replace
from support.router.dispatch_rig import answer_bytes, MS, request_bytes, SECOND
from support.router.shadow_feed_rig import ALL, feed_rig, LIMIT_S, LIVE, SHADOW

from lerobot_serve.cage import limits_encoding
from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.contract.records import Extension
from lerobot_serve.contract.schema import Refusal, Status
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.shadow.feed import DEPOSITS_LIMIT, REQUESTS_LIMIT
from lerobot_serve.router.shadow.sample_joiner import RequestKey
from lerobot_serve.router.shadow.sampling import is_drawn_twice, is_shadowed
from lerobot_serve.router.shadow.sessions import RETRY_NS


@pytest.fixture
def rig(tmp_path):
    with feed_rig(tmp_path) as made:
        made.start()
        yield made


@pytest.fixture
def waiting(tmp_path):
    """A feed whose thread was not started yet."""
    with feed_rig(tmp_path) as made:
        yield made


def test_what_was_executed_is_compared_with_what_the_shadow_says(rig):
    rig.rounds(rig.robot(), 1, 2, 3)
    assert [found.seq for found, _ in rig.published] == [1]
    found, names = rig.published[0]
    assert (found.client_id, found.live_policy, found.shadow_policy) == ('robot', LIVE, SHADOW)
    assert names == ('x', 'y')
    assert rig.drops() == {}
    assert rig.feed.comparator.summary().samples == 1


def test_each_session_is_opened_once_and_anew_with_its_epoch(rig):
    for epoch in (1, 2):
        rig.rounds(rig.robot(epoch=epoch), 1, 2, 3)
    rig.rounds(rig.robot('other'), 1)
    assert [(a.client_id, a.session_epoch) for a in rig.shadow.opened] == [
        ('robot', 1),
        ('robot', 2),
        ('other', 1),
    ]
    assert rig.shadow.asked[:4] == [
        ('robot', 1, 1),
        ('robot', 1, 2),
        ('robot', 1, 3),
        ('robot', 2, 1),
    ]


def test_no_more_requests_wait_than_there_is_room_for(waiting):
    robot = waiting.robot()
    for seq in range(REQUESTS_LIMIT + 5):
        waiting.request(robot, seq)
    waiting.start()
    waiting.settle()
    assert waiting.drops() == {'shadow_overflow': 5}
    assert len(waiting.shadow.sent) == REQUESTS_LIMIT
    waiting.request(robot, 99)
    waiting.settle()
    assert waiting.shadow.asked[-1] == ('robot', 1, 99)


def test_a_flood_of_chunks_takes_the_room_of_requests_only_as_long_as_it_lasts(waiting):
    robot = waiting.robot()
    for _ in range(DEPOSITS_LIMIT):
        waiting.feed.on_shadow_chunk(b'')
    for seq in range(2 * REQUESTS_LIMIT):
        waiting.request(robot, seq)
    assert waiting.drops() == {'shadow_overflow': 2 * REQUESTS_LIMIT}
    waiting.start()
    waiting.settle()
    waiting.request(robot, 1000)
    waiting.settle()
    assert waiting.shadow.asked == [('robot', 1, 1000)]
    assert waiting.drops()['shadow_overflow'] == 2 * REQUESTS_LIMIT


def test_what_found_no_room_is_counted_once(waiting):
    robot = waiting.robot()
    requests = [waiting.request(robot, seq) for seq in range(REQUESTS_LIMIT + 5)]
    for request in requests:
        waiting.serve(robot, request)
        waiting.feed.on_shadow_chunk(answer_bytes(request, policy=SHADOW))
    waiting.start()
    waiting.settle()
    waiting.now_ns += 60 * SECOND
    waiting.settle()
    assert waiting.drops() == {'shadow_overflow': 5, 'shadow_unmatched': REQUESTS_LIMIT}


def test_a_shadow_that_refuses_a_robot_is_left_alone_with_that_one(rig):
    rig.shadow.error = SessionRefused(Refusal.CAPACITY, 'it is full')
    rig.rounds(rig.robot(), 1, 2, 3)
    rig.now_ns += RETRY_NS - MS
    rig.rounds(rig.robot(), 4)
    assert len(rig.shadow.opened) == 1
    assert rig.drops()['shadow_no_session'] == 4
    assert rig.told == ["shadow session of 'robot' refused: it is full"]
    # another robot may fit
    rig.shadow.error = None
    rig.rounds(rig.robot('other'), 1)
    assert len(rig.shadow.opened) == 2
    rig.now_ns += MS
    rig.rounds(rig.robot(), 5)
    assert len(rig.shadow.opened) == 3
    assert rig.shadow.asked == [('other', 1, 1), ('robot', 1, 5)]


def test_a_shadow_that_does_not_answer_is_left_alone_altogether(rig):
    rig.shadow.error = ServerUnreachable('it did not answer')
    for name in ('one', 'two', 'three'):
        rig.rounds(rig.robot(name), 1, 2)
    assert len(rig.shadow.opened) == 1
    assert rig.drops()['shadow_no_session'] == 6
    assert rig.told == ['shadow unreachable: it did not answer']
    rig.now_ns += RETRY_NS
    rig.rounds(rig.robot('two'), 3)
    assert len(rig.shadow.opened) == 2
    # said once for the whole stretch, and again for the next
    assert len(rig.told) == 1
    rig.shadow.error = None
    rig.now_ns += RETRY_NS
    rig.rounds(rig.robot('two'), 4)
    rig.shadow.error = ServerUnreachable('it did not answer')
    rig.rounds(rig.robot('one'), 5)
    assert len(rig.told) == 2


def test_what_the_shadow_was_not_asked_is_counted_once_and_not_kept(rig):
    rig.shadow.error = ServerUnreachable('gone')
    rig.rounds(rig.robot(), *range(1, 20), shadow=False)
    rig.now_ns += 60 * SECOND
    rig.settle()
    assert rig.drops() == {'shadow_no_session': 19}


def test_a_lost_session_is_opened_again(rig):
    robot = rig.robot()
    request = rig.request(robot, 1)
    rig.feed.on_shadow_chunk(answer_bytes(request, status=Status.NO_SESSION))
    rig.rounds(robot, 2)
    assert len(rig.shadow.opened) == 2
    assert rig.drops() == {'shadow_failed': 1}


def test_second_draws_come_from_the_live_policy_under_another_name(rig):
    robot = rig.robot()
    # that a policy draws random numbers is seen by its first answer
    rig.rounds(robot, 1, 2, 3, seed=10)
    assert [ask.client_id for ask in rig.second_draws.opened] == ['robot~again']
    assert rig.second_draws.asked == [('robot~again', 1, 2), ('robot~again', 1, 3)]
    second = rig.second_draws.sent[0]
    rig.feed.on_second_draw(answer_bytes(second, policy=LIVE, seed=77))
    rig.settle()
    assert 'second_draw_late' not in rig.drops()
    # the shadow is asked under the robot's own name
    assert {name for name, _, _ in rig.shadow.asked} == {'robot'}


def test_a_policy_that_draws_nothing_is_asked_once(rig):
    rig.rounds(rig.robot(), 1, 2, 3)
    assert not rig.second_draws.opened


def test_second_draws_need_room_and_a_name_that_fits(rig):
    rig.has_room = False
    rig.rounds(rig.robot(), 1, 2, 3, seed=10)
    assert rig.drops() == {'second_draw_no_room': 2}
    rig.has_room = True
    rig.rounds(rig.robot('n' * ID_LIMIT), 1, seed=10)
    assert rig.drops()['second_draw_no_room'] == 3
    rig.second_draws.error = SessionRefused(Refusal.CAPACITY, 'full')
    rig.rounds(rig.robot(), 4, seed=10)
    assert rig.drops()['second_draw_no_session'] == 1
    assert not rig.second_draws.sent


def test_a_second_session_that_was_lost_is_opened_again(rig):
    robot = rig.robot()
    rig.rounds(robot, 1, 2, seed=10)
    lost = answer_bytes(rig.second_draws.sent[-1], status=Status.NO_SESSION)
    rig.feed.on_second_draw(lost)
    rig.rounds(robot, 3, seed=10)
    assert len(rig.second_draws.opened) == 2
    assert rig.drops()['second_draw_failed'] == 1


def test_the_sessions_of_a_robot_that_is_gone_are_closed(rig):
    robot = rig.robot()
    rig.rounds(robot, 1, 2, seed=10)
    assert (rig.shadow.sessions, rig.second_draws.sessions) == ({'robot': 1}, {'robot~again': 1})
    rig.feed.on_session_closed(rig.robot(epoch=9).request)
    rig.settle()
    assert rig.shadow.sessions, 'that was another session'
    rig.feed.on_session_closed(robot.request)
    rig.settle()
    assert (rig.shadow.sessions, rig.second_draws.sessions) == ({}, {})
    # closed once, and opened again when the robot is back
    rig.feed.on_session_closed(robot.request)
    rig.rounds(robot, 3)
    assert (len(rig.shadow.closed), len(rig.shadow.opened)) == (1, 2)


def test_a_shadow_that_does_not_answer_is_not_told_of_each_robot_that_goes(rig):
    robots = [rig.robot(f'robot_{number}') for number in range(5)]
    for robot in robots:
        rig.rounds(robot, 1)
    rig.shadow.error = ServerUnreachable('it hangs')
    for robot in robots:
        rig.feed.on_session_closed(robot.request)
    rig.settle()
    assert len(rig.shadow.closed) == 1


def test_a_shadow_that_hangs_keeps_nobody_waiting(rig):
    rig.shadow.hangs = threading.Event()
    robot = rig.robot()
    for seq in range(DEPOSITS_LIMIT * 2):
        request = rig.request(robot, seq)
        rig.serve(robot, request)
        rig.feed.on_shadow_chunk(b'')
    assert not rig.feed.finish(0.0)
    assert rig.drops()['shadow_overflow'] > DEPOSITS_LIMIT
    rig.shadow.hangs.set()
    rig.settle()


def test_limits_that_cannot_be_used_are_said_and_counted(rig):
    extensions = (Extension(limits_encoding.EXTENSION_KEY, b'nonsense'),)
    rig.rounds(rig.robot(extensions=extensions), 1)
    assert rig.told
    assert rig.told[0].startswith("limits of 'robot': ")
    assert rig.drops() == {'limits_unusable': 1}


def test_malformed_answers_are_counted_and_end_nothing(rig):
    robot = rig.robot()
    request = rig.request(robot, 1)
    whole = answer_bytes(request, policy=SHADOW)
    for deposit in (rig.feed.on_shadow_chunk, rig.feed.on_second_draw):
        for raw in (b'', b'\x00\x01\x00\x00', b'\xff' * 64, request, whole[:-5]):
            deposit(raw)
    rig.settle()
    assert sum(rig.drops().values()) == 10
    rig.rounds(robot, 2, 3, 4)
    assert rig.published


def test_the_share_that_is_sampled_may_change_at_any_time(rig):
    rig.feed.rules = replace(ALL, shadow_sample_percent=0.0)
    rig.rounds(rig.robot(), 1, 2, 3)
    assert not rig.shadow.sent
    assert rig.drops() == {}
    rig.feed.rules = replace(ALL, shadow_spread_percent=0.0)
    rig.rounds(rig.robot(), 4, 5, seed=10)
    assert len(rig.shadow.sent) == 2
    assert not rig.second_draws.sent


def test_drops_may_be_read_while_they_are_counted(rig):
    """A dictionary must not change its size under its reader."""
    counted = rig.book.drops
    counted.update(f'reason_{number}' for number in range(1000))
    done = threading.Event()

    def count() -> None:
        number = 1000
        while not done.is_set():
            counted[f'reason_{number}'] += 1
            del counted[f'reason_{number}']
            number += 1

    counter = threading.Thread(target=count)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        counter.start()
        for _ in range(200):
            assert len(rig.drops()) >= 1000
    finally:
        done.set()
        counter.join(LIMIT_S)
        sys.setswitchinterval(before_s)


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
    """One feed for all that hypothesis throws at it."""
    with feed_rig(Path(tmp_path_factory.mktemp('feed'))) as made:
        made.start()
        yield made


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(['request', 'serve', 'shadow', 'again', 'cut', 'status', 'close']),
            st.integers(1, 4),
            st.integers(0, 200),
            st.sampled_from(['robot', 'other', 'robot~again', 'nobody']),
        ),
        max_size=30,
    )
)
def test_nothing_raises_in_the_thread_in_whatever_order_it_comes(shared, events):
    for what, seq, number, name in events:
        robot = shared.robot(name)
        request = shared.request(robot, seq) if what == 'request' else asked(robot, seq)
        raw = answer_bytes(request, policy=SHADOW)
        if what == 'serve':
            shared.serve(robot, request, seed=number)
        elif what == 'shadow':
            shared.feed.on_shadow_chunk(raw)
        elif what == 'again':
            shared.feed.on_second_draw(
                answer_bytes(request, policy=LIVE, client_id=f'{name}~again')
            )
        elif what == 'cut':
            shared.feed.on_shadow_chunk(raw[:number])
            shared.feed.on_second_draw(raw[:number])
        elif what == 'status':
            shared.feed.on_shadow_chunk(answer_bytes(request, status=1 + number % 6))
        elif what == 'close':
            shared.feed.on_session_closed(robot.request)
    shared.settle()
    shared.now_ns += SECOND
    assert not shared.raised


def asked(robot: ClientSession, seq: int) -> bytes:
    return request_bytes(robot.request.client_id, seq, 'e-1')


REQUESTS = [RequestKey(f'robot_{n % 7}', n % 5, n) for n in range(4000)]
keys = st.builds(
    RequestKey, st.text(max_size=9), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
)


@given(keys)
def test_all_or_none(key):
    for choose in (is_shadowed, is_drawn_twice):
        assert choose(key, 100.0)
        assert not choose(key, 0.0)


@pytest.mark.parametrize('choose', [is_shadowed, is_drawn_twice])
@pytest.mark.parametrize('percent', [0.5, 5.0, 50.0, 99.0])
def test_about_as_many_as_said(choose, percent):
    share = sum(choose(key, percent) for key in REQUESTS) / len(REQUESTS)
    # four standard deviations
    slack = 4 * (percent / 100 * (1 - percent / 100) / len(REQUESTS)) ** 0.5
    assert abs(share - percent / 100) < slack


@given(keys, st.floats(0, 100), st.floats(0, 100))
def test_more_percent_only_add_requests(key, low, high):
    low, high = sorted((low, high))
    assert is_shadowed(key, low) <= is_shadowed(key, high)


def test_the_same_requests_are_chosen_on_every_machine():
    chosen = [n for n, key in enumerate(REQUESTS[:100]) if is_shadowed(key, 10.0)]
    assert chosen == [5, 6, 21, 34, 52, 78, 79]


def test_the_two_choices_have_nothing_to_do_with_each_other():
    shadowed = [key for key in REQUESTS if is_shadowed(key, 50.0)]
    share = sum(is_drawn_twice(key, 50.0) for key in shadowed) / len(shadowed)
    assert 0.44 < share < 0.56


def test_each_number_of_a_request_counts():
    one = RequestKey('robot_1', 1, 1)
    for others in (
        [one._replace(seq=n) for n in range(64)],
        [one._replace(session_epoch=n) for n in range(64)],
        [one._replace(client_id=str(n)) for n in range(64)],
    ):
        assert len({is_shadowed(other, 50.0) for other in others}) == 2
