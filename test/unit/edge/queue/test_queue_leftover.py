# SPDX-License-Identifier: Apache-2.0
"""What is left as the prefix of the next request: aligned, of one policy, never padded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.contract.data_path.message_parts import NO_ACTIONS
from lerobot_serve.edge.action_queue import (
    ActionQueue,
    ChunkSource,
    elapsed_time,
    Leftover,
    QueueMark,
)

LIMIT = 50


def plan(queue: ActionQueue, seq: int, rows: int, policy: str = 'a@0', **changes: object) -> None:
    """Append rows 100 * seq, 100 * seq + 1, ... and, twice as wide, their negatives as model."""
    robot = 100 * seq + np.arange(rows, dtype=np.float32)[:, None]
    content = {'model': np.repeat(-robot, 2, axis=1), **changes}
    of = ChunkSource(seq, 7, 0, 'episode', seq, 'prod', policy)
    assert queue.append(robot, of, mark=queue.mark(), **content)


def numbers(leftover: Leftover) -> list[float]:
    """Return the rows, after a check that both units say the same."""
    robot = leftover.robot[:, 0].tolist() if len(leftover.robot) else []
    if len(leftover.model):
        assert leftover.model.tolist() == [[-row, -row] for row in robot]
    return robot


def is_empty(leftover: Leftover) -> bool:
    assert (leftover.policy == '') == (leftover.source is None) == (not len(leftover.robot))
    return not len(leftover.model) and not len(leftover.robot)


@pytest.mark.parametrize('rows', [2, 3])
def test_a_chunk_of_which_everything_is_skipped_has_no_prefix(rows):
    queue = ActionQueue(elapsed_time)
    chunk = np.ones((rows, 1), np.float32)
    of = ChunkSource(1, 7, 0, 'episode', 0, 'prod', 'a@0')
    queue.replace(chunk, of, mark=queue.mark(), delay_rows=3, model=chunk)
    assert is_empty(queue.leftover(LIMIT))


def test_a_cleared_queue_has_no_prefix():
    queue = ActionQueue()
    plan(queue, 1, 2)
    queue.clear()
    assert is_empty(queue.leftover(LIMIT))
    assert queue.leftover(LIMIT).mark == QueueMark(1, 0)


def test_a_prefix_begins_with_the_next_row_to_play():
    queue = ActionQueue()
    plan(queue, 1, 4)
    queue.take()
    left = queue.leftover(LIMIT)
    assert numbers(left) == [101, 102, 103]
    assert (left.policy, left.source.seq, left.mark) == ('a@0', 1, QueueMark(0, 1))
    assert queue.rows_left == 3


def test_chunks_with_and_without_the_units_of_the_policy_do_not_make_one_prefix():
    queue = ActionQueue()
    plan(queue, 1, 2)
    plan(queue, 2, 2, model=NO_ACTIONS)
    assert is_empty(queue.leftover(LIMIT))
    queue.take()
    queue.take()
    left = queue.leftover(LIMIT)
    assert (numbers(left), left.model.size) == ([200, 201], 0)


policies = st.sampled_from(('a@0', 'b@0'))
chunks = st.lists(st.tuples(policies, st.integers(0, 4)), max_size=6)


@given(chunks, st.integers(0, 12), st.integers(0, 12))
def test_a_prefix_is_what_will_be_played_next(script, taken, limit):
    queue = ActionQueue()
    for seq, (policy, rows) in enumerate(script, 1):
        plan(queue, seq, rows, policy)
    for _ in range(taken):
        queue.take()
    left = queue.leftover(limit)
    coming = []
    while planned := queue.take():
        coming.append((planned.source, planned.action[0]))
    newest = coming[-1][0].policy if coming else ''
    expected = []
    for source, number in coming[:limit]:
        if source.policy != newest:
            break
        expected.append(number)
    assert numbers(left) == expected
    assert left.policy == (newest if expected else '')
    assert left.source == (coming[0][0] if expected else None)
    is_empty(left)


# for how long there is something to play: rows end when played, or when they are too old


S = 1_000_000_000
STEP_S = 0.1


def source(captured_s: float) -> ChunkSource:
    return ChunkSource(1, 1, 1, 'episode', int(captured_s * S), 'a', 'p@0')


def queue(*stretches: tuple[int, float]) -> ActionQueue:
    """Return a queue of chunks, each with its rows and when its observation was captured."""
    made = ActionQueue()
    for rows, captured_s in stretches:
        made.append(np.zeros((rows, 2)), source(captured_s), mark=made.mark())
    return made


@pytest.mark.parametrize(
    ('stretches', 'playable_s'),
    [
        ((), 0.0),
        (((5, 10.0),), 0.5),
        (((50, 10.0),), 2.0),
        (((50, 9.0),), 1.0),
        (((50, 7.9),), 0.0),
        (((5, 9.0), (5, 10.0)), 1.0),
        (((50, 9.0), (50, 10.0)), 2.0),
        (((50, 8.0), (5, 10.0)), 0.5),
    ],
)
def test_rows_count_until_they_are_too_old(stretches, playable_s):
    made = queue(*stretches)
    assert made.playable_s(10 * S, STEP_S, 2 * S) == pytest.approx(playable_s)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(5, 10)), max_size=4),
    st.integers(1, 40),
)
def test_it_is_what_a_tick_thread_would_live(stretches, max_age_tenths):
    made = queue(*stretches)
    told_s = made.playable_s(10 * S, STEP_S, max_age_tenths * S // 10)
    now_ns, ticks = 10 * S, 0
    while made.take_fresh(now_ns - max_age_tenths * S // 10)[0] is not None:
        now_ns += int(STEP_S * S)
        ticks += 1
    # a row is taken at the begin of its step: the last may end up to a step later
    assert told_s == pytest.approx(ticks * STEP_S, abs=STEP_S * (1 + len(stretches)))
