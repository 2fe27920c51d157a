# SPDX-License-Identifier: Apache-2.0
"""What belongs together is joined in whatever order it comes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from support.router.joining_rig import AGE_NS, begin, draw, execute, joiner, ROWS, take
from support.router.shadow_rig import key, run

from lerobot_serve.contract.data_path.execution_report import ExecutedRun
from lerobot_serve.router.shadow.sample_joiner import EXECUTED_LIMIT, NO_ROWS

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
