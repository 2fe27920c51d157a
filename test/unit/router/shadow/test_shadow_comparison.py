# SPDX-License-Identifier: Apache-2.0
"""A shadow beside a robot: what it would have done instead, and how far that is in spreads."""

from __future__ import annotations

from math import inf, isnan, nan, sqrt

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest
from support.router.shadow_rig import ask, CALM, key, LIVE, MS, ramp, run, S, SHADOW, start, World

from lerobot_serve.contract.schema import Status
from lerobot_serve.router.shadow.comparator import AGE_LIMIT_NS, ROBOTS_LIMIT, SAMPLES_LIMIT
from lerobot_serve.router.shadow.divergence import (
    divergence,
    Incomparable,
    POLICIES_LIMIT,
    PolicySpread,
    shared_rows,
    WINDOW_DRAWS,
)


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def test_a_shadow_that_does_the_same_is_not_apart(world):
    (found,) = world.sample(5, CALM, CALM, episode_id='e-7', latency_s=0.025)
    assert (found.client_id, found.episode_id, found.seq) == ('robot_1', 'e-7', 5)
    assert (found.live_policy, found.shadow_policy) == (LIVE, SHADOW)
    assert (found.rows, found.divergence, found.per_action) == (5, 0.0, (0.0, 0.0))
    assert (found.limits_known, found.cage_would_trip) == (True, False)
    assert found.latency_ms == pytest.approx(25.0)
    assert isnan(found.divergence_in_spreads)
    assert world.drops == {}


def test_the_difference_is_to_what_was_commanded_not_to_what_was_planned(world):
    (found,) = world.sample(1, CALM, CALM, commanded=CALM + np.float32([0.3, 0.0]))
    assert found.per_action == pytest.approx((0.3, 0.0))
    assert found.divergence == pytest.approx(0.3 / sqrt(2))


def test_only_rows_that_were_executed_are_compared(world):
    world.request(key())
    world.live(key(), CALM)
    other = CALM.copy()
    other[[0, 4]] = 50.0
    world.shadow(key(), other)
    world.executed(key(2), run(key(), 1, CALM[1:3]))
    world.executed(key(3), run(key(), 3, CALM[3:4]), run(key(2), 0, CALM[:1]))
    (found,) = world.poll()
    assert (found.rows, found.divergence, found.cage_would_trip) == (3, 0.0, False)


def test_a_slow_shadow_is_compared_when_it_answers(world):
    world.request(key())
    world.live(key(), CALM)
    world.executed(key(2), run(key(), 0, CALM))
    world.executed(key(3), run(key(2), 0, CALM[:1]))
    assert world.poll(5.0) == []
    world.shadow(key(), CALM)
    (found,) = world.poll()
    assert found.latency_ms == 5000.0


# what trips


def test_a_shadow_that_would_have_tripped_the_cage(world):
    (found,) = world.sample(1, CALM, ramp(0.0, 0.3, 5))
    assert (found.limits_known, found.cage_would_trip) == (True, True)


def test_a_shadow_whose_actions_are_no_numbers_trips_and_is_in_no_mean(world):
    world.sample(1, CALM, CALM + 0.5)
    (found,) = world.sample(11, CALM, CALM * np.float32([nan, 1.0]))
    assert isnan(found.divergence)
    assert isnan(found.per_action[0]) and found.per_action[1] == 0.0
    assert found.cage_would_trip
    summary = world.book.summary()
    assert (summary.samples, summary.cage_trips) == (2, 1)
    assert summary.divergence_mean == pytest.approx(0.5)


def test_without_limits_it_is_not_known_what_the_cage_would_have_said(tmp_path):
    world = World(tmp_path, limits=False)
    (found,) = world.sample(1, CALM, ramp(0.0, 9.0, 5))
    assert (found.limits_known, found.cage_would_trip) == (False, False)


def test_limits_that_cannot_be_used_are_counted_and_said(world):
    assert 'not JSON' in world.book.on_session(ask(limits=b'noise'))
    assert world.drops == {'limits_unusable': 1}
    assert not world.sample(1, CALM, CALM)[0].limits_known


def test_the_first_row_is_judged_from_what_was_commanded_before(world):
    def compared(seq: int, **fields: bool) -> bool:
        """Let the shadow begin 0.3 further than the robot was, of which it may go 0.25."""
        world.executed(key(seq), run(key(seq - 1), 0, ramp(0.0, 0.0, 3)))
        world.request(key(seq))
        world.live(key(seq), CALM)
        world.shadow(key(seq), ramp(0.3, 0.1, 5))
        world.executed(key(seq + 1), run(key(seq), 0, CALM, **fields))
        world.executed(key(seq + 2), run(key(seq + 1), 0, CALM[-1:]))
        (found,) = world.poll()
        return found.cage_would_trip

    assert compared(10)
    # meanwhile something else was commanded
    assert not compared(20, after_pause=True)


def test_between_two_rows_something_else_may_have_been_commanded(world):
    rows = np.concatenate((ramp(0.0, 0.1, 3), ramp(0.9, 0.0, 2)))
    for seq, after_pause in ((10, True), (20, False)):
        world.request(key(seq))
        world.live(key(seq), CALM)
        world.shadow(key(seq), rows)
        later = run(key(seq), 3, CALM[3:], after_pause=after_pause)
        world.executed(key(seq + 1), run(key(seq), 0, CALM[:3]), later)
        world.executed(key(seq + 2), run(key(seq + 1), 0, CALM[:1]))
        (found,) = world.poll()
        assert found.cage_would_trip != after_pause


# what cannot be compared


def test_a_shadow_that_fails_is_counted(world):
    world.request(key())
    world.live(key(), CALM)
    world.shadow(key(), (), status=Status.NOT_FINITE)
    world.executed(key(2), run(key(), 0, CALM))
    assert world.poll(60) == []
    assert world.drops == {'shadow_failed': 1}


def test_a_request_that_the_shadow_was_not_sent_is_counted_once(world):
    world.book.on_unsent(start(key()), 'shadow_no_session', world.now_ns)
    world.live(key(), CALM)
    world.executed(key(2), run(key(), 0, CALM))
    assert world.poll(60) == []
    assert world.drops == {'shadow_no_session': 1}


def test_a_robot_that_got_no_actions_is_counted(world):
    world.request(key())
    world.live(key(), (), status=Status.POLICY_ERROR)
    world.shadow(key(), CALM)
    assert world.poll(60) == []
    assert world.drops == {'shadow_unmatched': 1}


@pytest.mark.parametrize(
    ('rows', 'reason'),
    [
        (ramp(0, 0, 5, columns=3), 'shadow_shape'),
        (ramp(0, 0, 5, columns=1), 'shadow_shape'),
        (ramp(0, 0, 2), 'shadow_short'),
    ],
)
def test_a_shadow_of_another_shape_is_counted(world, rows, reason):
    world.request(key())
    world.live(key(), CALM)
    world.shadow(key(), rows)
    world.executed(key(2), run(key(), 2, CALM[2:]))
    world.executed(key(3), run(key(2), 0, CALM[:1]))
    assert world.poll() == []
    assert world.drops == {reason: 1}


# all together


def test_the_summary_is_of_the_policy_in_shadow(world):
    for n in range(30):
        world.sample(10 * n + 1, CALM, CALM + 0.5, episode_id=f'e-{n % 4}', latency_s=0.02)
        world.now_ns += 480 * MS
    summary = world.book.summary()
    assert (summary.shadow_policy, summary.live_policy) == (SHADOW, LIVE)
    assert (summary.episodes, summary.samples, summary.cage_trips) == (4, 30, 0)
    assert summary.hours_in_shadow == pytest.approx(29 * 0.5 / 3600)
    assert summary.latency_ms_p50 == summary.latency_ms_p95 == pytest.approx(20.0)
    assert world.book.drops == {}


def test_before_the_first_sample_there_is_nothing_to_say(world):
    summary = world.book.summary()
    assert (summary.shadow_policy, summary.samples, summary.hours_in_shadow) == ('', 0, 0)
    assert isnan(summary.divergence_mean) and isnan(summary.latency_ms_p50)


def test_what_was_learned_is_there_after_a_restart(world):
    world.sample(1, CALM, CALM + 0.5)
    world.book.close()
    world.book = world.open()
    world.sample(11, CALM, CALM + 1.0)
    summary = world.book.summary()
    assert (summary.samples, summary.episodes) == (2, 1)
    assert summary.divergence_mean == pytest.approx(0.75)
    assert world.said == []


def test_it_is_saved_while_it_runs(world):
    world.sample(1, CALM, CALM)
    world.poll(11)
    assert world.kept


steps = st.tuples(
    st.sampled_from(['request', 'live', 'shadow', 'second', 'executed', 'session', 'poll']),
    st.integers(0, 3),
    st.integers(0, 9),
    st.sampled_from([0, 1, 2, 5]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([0.0, 0.25, nan, 3e38]),
)


@given(st.lists(steps, max_size=80))
@settings(max_examples=80)
def test_nothing_that_arrives_does_harm(tmp_path_factory, script):
    world = World(tmp_path_factory.mktemp('state'))
    found = []
    for what, robot, seq, count, columns, value in script:
        of = key(seq, f'robot_{robot}')
        rows = np.full((count, columns), value, np.float32)
        if what == 'request':
            world.request(of)
        elif what == 'executed':
            world.executed(key(seq + 1, of.client_id), *[run(of, seq % 3, rows)] * bool(count))
        elif what == 'session':
            names = tuple(f'j{i}' for i in range(columns))
            world.book.on_session(ask(client_id=of.client_id, names=names))
        elif what == 'poll':
            found += world.poll(count)
        else:
            getattr(world, what)(of, rows, seed=seq)
    found += world.poll(AGE_LIMIT_NS / S)
    for comparison in found:
        assert comparison.rows >= 1
        assert not comparison.divergence < 0
        assert isnan(comparison.divergence) <= comparison.cage_would_trip
    assert world.book.summary().samples == len(found)


def test_a_flood_is_held_back(world):
    for number in range(SAMPLES_LIMIT + ROBOTS_LIMIT):
        of = key(1, f'robot_{number}')
        world.request(of)
        world.live(of, CALM)
        world.executed(key(2, of.client_id), run(of, 0, CALM))
    world.book.poll(world.now_ns)
    assert world.drops['shadow_overflow'] == ROBOTS_LIMIT
    assert world.book.size < 20 * CALM.size * SAMPLES_LIMIT


def test_before_the_first_draw_it_is_not_known():
    spread = PolicySpread()
    assert isnan(spread.of(LIVE))
    assert isnan(spread.in_spreads(LIVE, 5, 1.0))


def test_draws_are_pooled():
    spread = PolicySpread()
    for rms in (3.0, 4.0, nan, inf, -1.0):
        spread.add(LIVE, rms)
    assert spread.of(LIVE) == sqrt(25 / 2)
    assert spread.in_spreads(LIVE, 5, 1.0) == 1 / sqrt(25 / 2)
    assert isnan(spread.of('another'))


def test_a_policy_that_draws_nothing_has_none():
    spread = PolicySpread()
    spread.add(LIVE, 1.0)
    assert isnan(spread.in_spreads(LIVE, 0, 1.0))
    assert isnan(spread.in_spreads(LIVE, 5, nan))


def test_draws_that_are_always_the_same_are_no_measure():
    spread = PolicySpread()
    spread.add(LIVE, 0.0)
    assert spread.of(LIVE) == 0.0
    assert isnan(spread.in_spreads(LIVE, 5, 1.0))


def test_the_window_forgets():
    spread = PolicySpread()
    spread.add(LIVE, 1e6)
    for _ in range(WINDOW_DRAWS):
        spread.add(LIVE, 2.0)
    assert spread.of(LIVE) == 2.0


def test_of_too_many_policies_the_one_unheard_for_longest_is_forgotten():
    spread = PolicySpread()
    for n in range(POLICIES_LIMIT):
        spread.add(f'policy@{n}', 1.0)
    spread.add('policy@0', 1.0)
    spread.add('one@more', 1.0)
    assert isnan(spread.of('policy@1'))
    assert not isnan(spread.of('policy@0'))


# in a book


def test_divergence_is_told_in_spreads_of_the_policy_that_drives(world):
    (first,) = world.sample(1, CALM, CALM + 0.5, seed=5)
    assert isnan(first.divergence_in_spreads)
    (second,) = world.sample(11, CALM, CALM + 0.5, seed=7, second=CALM + 0.25)
    assert second.divergence_in_spreads == pytest.approx(2.0)
    (third,) = world.sample(21, CALM, CALM + 1.0, seed=9)
    assert third.divergence_in_spreads == pytest.approx(4.0)
    summary = world.book.summary()
    assert summary.divergence_in_spreads_mean == pytest.approx(3.0)
    assert world.book.qualification.of(SHADOW).spreads_count == 2


def test_a_policy_that_draws_nothing_has_no_spread(world):
    world.sample(1, CALM, CALM + 0.5, seed=5, second=CALM + 0.25)
    (found,) = world.sample(11, CALM, CALM + 0.5, seed=0)
    assert isnan(found.divergence_in_spreads)


USELESS_DRAWS = {
    'the same draw again': {'rows': CALM, 'seed': 5},
    'another policy': {'rows': CALM, 'seed': 6, 'policy': 'another@1'},
    'other actions': {'rows': ramp(0, 0, 5, columns=3), 'seed': 6},
    'too few rows': {'rows': CALM[:1], 'seed': 6},
}


@pytest.mark.parametrize('draw', USELESS_DRAWS.values(), ids=USELESS_DRAWS)
def test_a_second_draw_that_tells_nothing_is_counted(world, draw):
    world.request(key())
    world.live(key(), CALM, seed=5)
    world.shadow(key(), CALM)
    world.second(key(), **draw)
    world.executed(key(2), run(key(), 1, CALM[1:]))
    world.executed(key(3), run(key(2), 0, CALM[:1]))
    (found,) = world.poll()
    assert isnan(found.divergence_in_spreads)
    assert world.drops == {'second_draw_unusable': 1}


def test_a_second_draw_that_failed_is_counted(world):
    world.request(key())
    world.second(key(), (), status=Status.POLICY_ERROR)
    assert world.drops == {'second_draw_failed': 1}


finite = st.floats(-1e3, 1e3, width=32)
any_float = st.floats(width=32)


def rows_of(table: np.ndarray, *numbers: int) -> dict[int, np.ndarray]:
    return {number: table[number] for number in numbers}


def test_equal_rows_are_not_apart():
    apart = divergence(ramp(0, 1, 5), ramp(0, 1, 5))
    assert (apart.rows, apart.overall, apart.per_action) == (5, 0.0, (0.0, 0.0))


def test_each_action_has_its_own():
    apart = divergence(np.zeros((2, 2)), np.array([[3.0, 0.0], [4.0, 0.0]], np.float32))
    assert apart.per_action == (sqrt(12.5), 0.0)
    assert apart.overall == sqrt(25 / 4)


@given(arrays.arrays(np.float32, (3, 2), elements=finite), finite)
def test_a_constant_difference_is_itself(rows, difference):
    moved = (rows.astype(np.float64) + difference).astype(np.float64)
    apart = divergence(rows, moved)
    assert apart.overall == pytest.approx(abs(difference), abs=1e-9)
    assert apart.per_action == pytest.approx((abs(difference),) * 2, abs=1e-9)


@pytest.mark.parametrize('bad', [nan, inf, -inf])
def test_what_is_no_number_is_infinitely_far_and_said_so(bad):
    rows = ramp(0, 1, 3)
    other = rows.copy()
    other[1, 1] = bad
    apart = divergence(rows, other)
    assert isnan(apart.overall)
    assert apart.per_action[0] == 0.0
    assert isnan(apart.per_action[1])


tables = arrays.arrays(np.float32, (3, 2), elements=any_float)


@given(tables, tables)
def test_no_rows_do_harm(ours, theirs):
    apart = divergence(ours, theirs)
    for value in (apart.overall, *apart.per_action):
        assert isnan(value) or 0 <= value < inf


def test_only_rows_that_both_have_are_compared():
    table = ramp(0, 1, 9)
    assert shared_rows(rows_of(table, 7, 2, 3), table[:4]) == [2, 3]
    assert shared_rows(rows_of(table, 8), table) == [8]


@pytest.mark.parametrize(
    ('others', 'reason'),
    [
        (np.zeros((9, 3)), 'shadow_shape'),
        (np.zeros((0, 0)), 'shadow_shape'),
        (np.zeros((2, 2)), 'shadow_short'),
        (np.zeros((0, 2)), 'shadow_short'),
    ],
)
def test_what_cannot_be_compared_says_why(others, reason):
    with pytest.raises(Incomparable) as caught:
        shared_rows(rows_of(ramp(0, 1, 9), 2, 3), others)
    assert caught.value.reason == reason
