# SPDX-License-Identifier: Apache-2.0
"""What belongs together is joined in whatever order it comes, once, and no more is kept."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.router.joining_rig import (
    AGE_NS,
    begin,
    CAPACITY,
    draw,
    execute,
    joiner,
    ROWS,
    take,
    VALUES,
)
from support.router.shadow_rig import key, ramp, run, S, start, told

from lerobot_serve.contract.data_path.execution_report import ExecutedRun
from lerobot_serve.router.shadow.command_tails import CommandTails
from lerobot_serve.router.shadow.sample_joiner import EXECUTED_LIMIT, NO_ROWS, RequestKey, Sample

# what is whole


@pytest.mark.parametrize('order', permutations(range(4)))
def test_the_order_does_not_matter(order):
    join = joiner()
    arrivals = [
        lambda: join.request(key(), 'e-1', 5),
        lambda: join.live(key(), draw(seed=3)),
        lambda: join.shadow(key(), draw(2 * ROWS, 'act@2', now_ns=9)),
        lambda: join.request(key(2), 'e-1', 6),
    ]
    for number in order:
        arrivals[number]()
        arrivals[number]()
    execute(join, key(), 1, ROWS[1:3])
    execute(join, key(), 3, ROWS[3:])
    assert take(join) == []
    execute(join, key(2), 0)
    (sample,) = join.take(0)
    assert (sample.key, sample.episode_id, sample.requested_ns) == (key(), 'e-1', 5)
    assert (sample.live.policy, sample.live.seed) == ('act@1', 3)
    assert (sample.shadow.policy, sample.shadow.arrived_ns) == ('act@2', 9)
    assert {number: row.tolist() for number, row in sample.commanded.items()} == {
        number: ROWS[number].tolist() for number in (1, 2, 3)
    }
    assert join.drops == {}


def test_it_is_whole_when_the_robot_plays_a_later_chunk():
    join = joiner()
    begin(join, key(5))
    execute(join, key(5))
    # an earlier chunk, another robot: neither tells anything
    execute(join, key(4))
    execute(join, key(9, 'robot_2'))
    assert take(join) == []
    execute(join, key(6))
    assert take(join) == [5]


@pytest.mark.parametrize(('epoch', 'later'), [(8, True), (7 + 2**30, True), (6, False)])
def test_a_chunk_of_a_later_session_is_later(epoch, later):
    join = joiner()
    begin(join, key(5))
    execute(join, key(5))
    execute(join, key(1, session_epoch=epoch))
    assert take(join) == [5] * later


def test_sessions_are_counted_round_a_circle():
    last, first = key(5, session_epoch=2**32 - 1), key(1, session_epoch=0)
    assert last.is_before(first)
    assert not first.is_before(last)
    assert not first.is_before(first)


def test_a_shadow_that_is_slow_is_waited_for():
    join = joiner()
    begin(join, key(), without='shadow')
    execute(join, key())
    execute(join, key(2))
    assert take(join) == []
    join.shadow(key(), draw())
    assert take(join) == [1]


def test_after_its_time_it_is_whole_with_what_was_executed_by_then():
    join = joiner()
    begin(join, key(), now_ns=5)
    execute(join, key())
    assert take(join, 5 + AGE_NS - 1) == []
    assert take(join, 5 + AGE_NS) == [1]


def test_what_is_told_twice_counts_once():
    join = joiner()
    begin(join, key())
    execute(join, key())
    execute(join, key(), 0, 9 * ROWS)
    begin(join, key())
    execute(join, key(2))
    (sample,) = join.take(0)
    assert np.array_equal(list(sample.commanded.values()), ROWS)
    # nor does it come back when it is told again after that
    begin(join, key())
    execute(join, key())
    execute(join, key(2))
    assert take(join, 10 * AGE_NS) == []
    assert len(join) == 0
    assert join.drops == {}


def test_rows_are_copies():
    join, rows = joiner(), ROWS.copy()
    join.request(key(), '', 0)
    join.live(key(), draw(rows))
    join.shadow(key(), draw(rows))
    join.executed('robot_1', ExecutedRun(1, 7, 0, rows), NO_ROWS)
    rows[:] = 99
    execute(join, key(2))
    (sample,) = join.take(0)
    assert np.array_equal(sample.live.rows, ROWS)
    assert np.array_equal(sample.shadow.rows, ROWS)
    assert np.array_equal(sample.commanded[1], ROWS[1])


def test_it_remembers_what_was_commanded_before_and_where_something_came_between():
    join = joiner()
    begin(join, key())
    for first, before in ((0, ROWS[:2]), (1, ROWS[:1]), (2, NO_ROWS), (3, ROWS[2:3])):
        join.executed('robot_1', run(key(), first, ROWS[:1]), before)
    execute(join, key(2))
    (sample,) = join.take(0)
    assert np.array_equal(sample.before, ROWS[:2])
    assert sample.gap_rows == {2}


# what never is


# what does not come, whose rows are executed, whether its time passes, and why it is dropped
NEVER = {
    'the shadow does not answer': ('shadow', (1,), True, 'shadow_unanswered'),
    'nothing of it was executed': ('', (), True, 'shadow_unmatched'),
    'a later chunk was executed': ('', (2,), False, 'shadow_unmatched'),
    # it does not wait for the shadow
    'nor does the shadow answer': ('shadow', (2,), False, 'shadow_unmatched'),
    'its chunk was not seen': ('live', (1,), True, 'shadow_without_live'),
    'it was not asked': ('request', (1,), True, 'shadow_stray'),
}


@pytest.mark.parametrize(('missing', 'executed', 'late', 'reason'), NEVER.values(), ids=NEVER)
def test_a_sample_that_never_is_whole(missing, executed, late, reason):
    join = joiner()
    begin(join, key(), without=missing)
    for seq in executed:
        execute(join, key(seq))
    assert take(join, AGE_NS if late else 0) == []
    assert join.drops == {reason: 1}


@pytest.mark.parametrize('first', [True, False])
def test_what_failed_is_over_with(first):
    join = joiner()
    if first:
        join.drop(key(), 'shadow_failed', 0)
    begin(join, key(), without='shadow')
    join.drop(key(), 'shadow_failed', 0)
    join.shadow(key(), draw())
    execute(join, key())
    execute(join, key(2))
    assert take(join, AGE_NS) == []
    assert join.drops == {'shadow_failed': 1}


def test_a_second_draw_that_comes_late():
    join = joiner()
    begin(join, key())
    join.second(key(), draw(seed=2))
    join.second(key(), draw(seed=3))
    execute(join, key())
    execute(join, key(2))
    join.second(key(), draw(seed=4))
    (sample,) = join.take(0)
    assert sample.second.seed == 2
    assert join.drops == {'second_draw_late': 1}


def test_rows_of_another_width_or_too_many_are_not_looked_at():
    join = joiner(values_limit=10**9)
    begin(join, key())
    execute(join, key())
    execute(join, key(), 4, np.zeros((1, 3), np.float32))
    execute(join, key(), 4, np.zeros((EXECUTED_LIMIT, 2), np.float32))
    execute(join, key(2))
    (sample,) = join.take(0)
    assert len(sample.commanded) == 4
    assert join.drops == {'shadow_rows': 2}


def test_the_oldest_request_makes_room():
    join = joiner(values_limit=10**9)
    for seq in range(1, CAPACITY + 4):
        begin(join, key(seq), now_ns=seq)
        execute(join, key(seq, 'robot_2'))
    assert len(join) == CAPACITY
    assert join.drops == {'shadow_overflow': 3}
    assert take(join, 10 * AGE_NS) == []
    assert join.drops == {'shadow_overflow': 3, 'shadow_unmatched': CAPACITY}


@pytest.mark.parametrize('kind', ['live', 'shadow', 'second', 'rows'])
def test_no_message_is_too_large(kind):
    join = joiner()
    begin(join, key(1))
    begin(join, key(2))
    huge = np.zeros((VALUES, 2), np.float32)
    if kind == 'rows':
        execute(join, key(2), 0, huge)
    else:
        begin(join, key(3), without='live' if kind == 'live' else 'shadow')
        getattr(join, kind)(key(3), draw(huge))
    assert join.size <= VALUES + 3 * CAPACITY
    assert join.drops['shadow_overflow'] >= 1


def test_what_nobody_takes_makes_no_room():
    join = joiner()
    for seq in range(1, 5 * CAPACITY):
        begin(join, key(seq))
        execute(join, key(seq))
    whole = take(join)
    assert len(whole) <= CAPACITY
    assert len(whole) + join.drops['shadow_overflow'] + len(join) == 5 * CAPACITY - 1


def test_what_nobody_takes_does_not_grow_beyond_its_numbers_either():
    join = joiner(capacity=1000)
    for seq in range(1, 100):
        begin(join, key(seq))
        execute(join, key(seq))
    whole = take(join)
    assert 1 < len(whole) <= VALUES / (3 * ROWS.size)
    assert take(join, AGE_NS) == [99]


events = st.tuples(
    st.sampled_from(['request', 'live', 'shadow', 'second', 'drop', 'executed', 'take']),
    st.integers(0, 2),
    st.integers(0, 12),
    st.integers(0, 60),
)


@given(st.lists(events, max_size=120))
@settings(max_examples=150)
def test_of_any_flood_each_request_ends_once_and_no_more_is_kept_than_allowed(script):
    join, now_ns = joiner(), 0
    begun: set[RequestKey] = set()
    whole: list[Sample] = []
    for what, robot, seq, size in script:
        now_ns += S
        of = key(seq, f'robot_{robot}')
        rows = np.zeros((size % 7, size % 3), np.float32)
        if what in ('request', 'live', 'shadow', 'drop'):
            begun.add(of)
        if what == 'request':
            join.request(of, 'e', now_ns)
        elif what in ('live', 'shadow', 'second'):
            getattr(join, what)(of, draw(rows, now_ns=now_ns))
        elif what == 'drop':
            join.drop(of, 'shadow_failed', now_ns)
        elif what == 'executed' and rows.size:
            join.executed(of.client_id, run(of, size, rows), NO_ROWS)
        elif what == 'take':
            whole += join.take(now_ns)
        assert join.size <= 2 * VALUES + 4 * CAPACITY
    whole += join.take(now_ns + AGE_NS)
    assert len(join) == 0
    assert join.size <= CAPACITY
    reasons = ('unanswered', 'unmatched', 'overflow', 'failed', 'stray', 'without_live')
    dropped = sum(join.drops[f'shadow_{reason}'] for reason in reasons)
    # a request that was forgotten for long enough may begin anew
    assert len(whole) + dropped >= len(begun)
    if len(begun) <= CAPACITY:
        assert len(whole) + dropped == len(begun)
        assert len({sample.key for sample in whole}) == len(whole)
    for sample in whole:
        assert sample.live and sample.shadow and sample.commanded


def befores(
    tails: CommandTails, seq: int, *runs: ExecutedRun, **fields: object
) -> list[list[float]]:
    """Let a robot report, and return the first action before each run."""
    session_epoch = fields.pop('session_epoch', 7)
    begin = start(key(seq, session_epoch=session_epoch))
    found = tails.follow(begin, told(*runs, **fields))
    assert [one for one, _ in found] == list(runs)
    return [before[:, 0].tolist() if before.size else [] for _, before in found]


def one(first: float = 0.0, rows: int = 3, **fields: object) -> ExecutedRun:
    return run(key(), 0, ramp(first, 1.0, rows), **fields)


def test_the_last_two_rows_come_before_the_next_run():
    tails = CommandTails(9)
    assert befores(tails, 1, one(0), one(10)) == [[], [1.0, 2.0]]
    assert befores(tails, 2, one(20)) == [[11.0, 12.0]]
    # a request between two rows
    assert befores(tails, 3) == []
    assert befores(tails, 4, one(30)) == [[21.0, 22.0]]


def test_a_single_row_is_added_to_the_one_before_it():
    tails = CommandTails(9)
    assert befores(tails, 1, one(0, 1), one(10, 1), one(20, 1), one(30)) == [
        [],
        [0.0],
        [0.0, 10.0],
        [10.0, 20.0],
    ]


def test_behind_a_pause_nothing_is_known():
    tails = CommandTails(9)
    befores(tails, 1, one(0))
    assert befores(tails, 2, one(10, after_pause=True), one(20, 1)) == [[], [11.0, 12.0]]
    assert befores(tails, 3, one(30, 1, after_pause=True), one(40)) == [[], [30.0]]


@pytest.mark.parametrize(
    'fields',
    [
        {'seq': 3},
        {'seq': 1},
        {'seq': 2, 'session_epoch': 8},
        {'seq': 2, 'dropped_rows': 4},
    ],
    ids=['a request was lost', 'told twice', 'another session', 'rows were dropped'],
)
def test_behind_what_was_not_told_nothing_is_known(fields):
    tails = CommandTails(9)
    befores(tails, 1, one(0))
    assert befores(tails, fields.pop('seq'), one(10), one(20), **fields) == [[], [11.0, 12.0]]


def test_robots_are_told_apart_and_the_one_unheard_for_longest_is_forgotten():
    tails = CommandTails(2)
    for name, first in (('a', 0.0), ('b', 10.0), ('a', 20.0), ('c', 30.0)):
        tails.follow(start(key(1, name)), told(one(first)))
    assert len(tails) == 2
    for name, known in (('a', True), ('b', False)):
        ((_, before),) = tails.follow(start(key(2, name)), told(one()))
        assert bool(before.size) == known


def test_a_robot_that_changes_its_actions_has_no_row_before():
    tails = CommandTails(9)
    befores(tails, 1, one(0, 1))
    wide = run(key(), 0, np.zeros((1, 5)))
    found = tails.follow(start(key(2)), told(wide, one(20)))
    assert [before.shape for _, before in found] == [(1, 2), (1, 5)]


def test_no_message_is_kept_in_memory_for_it():
    tails, rows = CommandTails(9), ramp(0.0, 1.0, 200)
    befores(tails, 1, run(key(), 0, rows))
    ((_, before),) = tails.follow(start(key(2)), told(one()))
    assert before.base is None or before.base.size == 4
