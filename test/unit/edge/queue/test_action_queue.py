# SPDX-License-Identifier: Apache-2.0
"""The queue: what is played was predicted, in its order, and nothing is ever blended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.edge.action_queue import (
    ActionQueue,
    ChunkSource,
    DELAY_RULES,
    moving_time,
    QueuedAction,
    QueueMark,
)


def source(seq: int, captured_ns: int = 0) -> ChunkSource:
    return ChunkSource(seq, 7, 0, 'episode', captured_ns, 'prod', 'fake@0')


def chunk(rows: int, first: float = 0.0) -> np.ndarray:
    return np.arange(first, first + 2 * rows, dtype=np.float32).reshape(rows, 2)


def append(queue: ActionQueue, rows: np.ndarray, of: ChunkSource) -> None:
    assert queue.append(rows, of, mark=queue.mark())


def played(queue: ActionQueue) -> list[tuple[int, int]]:
    """Take everything; return seq and row of each."""
    taken = []
    while planned := queue.take():
        taken.append((planned.source.seq, planned.row))
    return taken


def test_an_empty_queue_has_nothing_to_play():
    queue = ActionQueue()
    assert queue.take() is None
    assert queue.take_fresh(0) == (None, 0)
    assert (queue.rows_left, queue.rows_taken, queue.clear()) == (0, 0, 0)


def test_a_first_chunk_starts_with_its_first_row_however_late_it_is():
    queue = ActionQueue()
    assert queue.replace(chunk(3), source(1), mark=queue.mark(), delay_rows=2) == 0
    assert played(queue) == [(1, 0), (1, 1), (1, 2)]


def test_clear_forgets_and_counts():
    queue = ActionQueue()
    append(queue, chunk(3), source(1))
    queue.take()
    assert (queue.clear(), queue.rows_cleared) == (2, 2)
    assert (queue.take(), queue.rows_left, queue.rows_taken) == (None, 0, 1)


def test_what_was_asked_before_a_clear_is_refused_and_counted():
    queue = ActionQueue()
    before, epoch = queue.mark(), queue.epoch
    queue.clear()
    assert queue.epoch != epoch
    append(queue, chunk(1), source(3))
    assert queue.append(chunk(3), source(1), mark=before) is False
    assert queue.replace(chunk(3), source(2), mark=before, delay_rows=0) is None
    assert queue.chunks_refused == 2
    assert played(queue) == [(3, 0)]


def test_a_chunk_without_rows_is_nothing_to_play():
    queue = ActionQueue()
    append(queue, chunk(2), source(1))
    append(queue, chunk(0), source(2))
    assert queue.rows_left == 2
    assert queue.replace(chunk(0), source(3), mark=queue.mark(), delay_rows=0) == 0
    assert (queue.rows_left, queue.take()) == (0, None)


def test_nobody_can_change_what_will_be_played():
    queue, rows, model = ActionQueue(), chunk(2), chunk(2)
    queue.append(rows, source(1), mark=queue.mark(), model=model)
    rows[:] = model[:] = np.nan
    with pytest.raises(ValueError, match='read-only'):
        queue.take().action[0] = np.nan
    assert queue.leftover(9).model.tolist() == [[2.0, 3.0]]
    queue.leftover(9).robot[:] = np.nan
    assert queue.take().action.tolist() == [2.0, 3.0]


@pytest.mark.parametrize('rows', [1, 3])
def test_rows_in_both_units_stand_side_by_side_or_not_at_all(rows):
    queue = ActionQueue()
    append(queue, chunk(1), source(1))
    with pytest.raises(ValueError, match=f'a chunk of 2 actions has {rows} rows'):
        queue.append(chunk(2), source(2), mark=queue.mark(), model=chunk(rows))
    with pytest.raises(ValueError, match='give as many, or none'):
        queue.replace(chunk(2), source(2), mark=queue.mark(), delay_rows=0, model=chunk(rows))
    assert queue.rows_left == 1


def test_stale_rows_are_dropped_and_were_not_lived_through():
    queue = ActionQueue()
    append(queue, chunk(3), source(1, captured_ns=10))
    append(queue, chunk(2), source(2, captured_ns=20))
    queue.take()
    planned, dropped = queue.take_fresh(20)
    assert (planned.source.seq, planned.row, dropped) == (2, 0, 2)
    assert queue.rows_taken == 2
    mark = queue.mark()
    assert queue.take_fresh(21) == (None, 1)
    assert queue.replace(chunk(3), source(3), mark=mark, delay_rows=9) == 0


steps = st.one_of(
    st.just(('take',)),
    st.just(('clear',)),
    st.tuples(st.just('stale'), st.integers(0, 20)),
    st.tuples(st.just('append'), st.integers(0, 5)),
    st.tuples(st.just('replace'), st.integers(0, 5), st.integers(-2, 9), st.integers(0, 9)),
)


@given(st.lists(steps, max_size=60))
def test_no_script_invents_an_action(script):
    queue, chunks, taken, lived = ActionQueue(), {}, [], 0
    for number, (step, *details) in enumerate(script, 1):
        before = queue.rows_left
        if step == 'take':
            lived += note(queue.take(), taken)
            assert queue.rows_left == max(0, before - 1)
        elif step == 'stale':
            planned, dropped = queue.take_fresh(details[0])
            assert planned is None or planned.source.captured_ns >= details[0]
            lived += note(planned, taken)
            assert queue.rows_left == before - dropped - (planned is not None)
        elif step == 'clear':
            assert queue.clear() == before
            assert queue.rows_left == 0
        else:
            chunks[number] = rows = random_chunk(number, details[0])
            of = source(number, captured_ns=number)
            if step == 'append':
                append(queue, rows, of)
                assert queue.rows_left == before + len(rows)
            else:
                mark = QueueMark(queue.epoch, max(0, lived - details[2]))
                skipped = queue.replace(rows, of, mark=mark, delay_rows=details[1])
                limit = min(max(0, details[1]), lived - mark.rows_taken, len(rows))
                assert 0 <= skipped <= limit
                assert queue.rows_left == len(rows) - skipped
        assert queue.rows_taken == lived
    for planned in taken:
        row = chunks[planned.source.seq][planned.row]
        assert planned.action.tobytes() == row.tobytes()
    order = [(planned.source.seq, planned.row) for planned in taken]
    assert order == sorted(set(order))


def note(planned: QueuedAction | None, taken: list[QueuedAction]) -> int:
    taken += [planned] if planned else []
    return int(planned is not None)


def random_chunk(seed: int, rows: int) -> np.ndarray:
    """Return rows of bits that no arithmetic would give back by chance."""
    return np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)


# how much of a chunk is skipped: each rule against a plain model made of lists


SCRIPTS = 2000
STEPS = 30


class Plain:
    """What a queue does, in the plainest words; a row is (chunk, row)."""

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.rows: list[tuple[int, int]] = []
        self.taken_since_request = 0

    def take(self) -> tuple[int, int] | None:
        if not self.rows:
            return None
        self.taken_since_request += 1
        return self.rows.pop(0)

    def request(self) -> None:
        self.taken_since_request = 0

    def replace(self, chunk: list[tuple[int, int]], delay: int) -> None:
        if self.rule == 'lerobot':
            self.rows = chunk[delay:]
            return
        if self.rule == 'moving_time' and delay > self.taken_since_request:
            delay = self.taken_since_request
        self.rows = list(chunk)
        while delay > 0 and self.rows:
            del self.rows[0]
            delay -= 1


@pytest.mark.parametrize('rule', DELAY_RULES)
def test_a_queue_plays_what_its_rule_says(rule):
    random = np.random.default_rng(4)
    rows_played = 0
    for _ in range(SCRIPTS):
        rows_played += play_script(rule, random)
    assert rows_played > SCRIPTS


def play_script(rule: str, random: np.random.Generator) -> int:
    """Play one random script on both; return how many rows were taken."""
    queue, plain = ActionQueue(DELAY_RULES[rule]), Plain(rule)
    mark, rows_played = queue.mark(), 0
    for number in range(STEPS):
        step = random.choice(['take', 'take', 'take', 'request', 'replace', 'append', 'clear'])
        if step == 'take':
            planned, expected = queue.take(), plain.take()
            assert (planned and (planned.source.seq, planned.row)) == expected
            rows_played += expected is not None
        elif step == 'request':
            mark = queue.mark()
            plain.request()
        elif step == 'clear':
            queue.clear()
            mark, plain.rows = queue.mark(), []
            plain.request()
        else:
            count, delay = int(random.integers(0, 9)), int(random.integers(-12, 12))
            chunk = [(number, row) for row in range(count)]
            of = ChunkSource(number, 7, 0, 'episode', 0, 'prod', 'fake@0')
            robot = np.zeros((count, 2), np.float32)
            if step == 'append':
                queue.append(robot, of, mark=mark)
                plain.rows += chunk
            else:
                skipped = queue.replace(robot, of, mark=mark, delay_rows=delay)
                plain.replace(chunk, delay)
                assert skipped == count - len(plain.rows)
        assert queue.rows_left == len(plain.rows)
    return rows_played


rows = st.integers(0, 200)


@pytest.mark.parametrize('rule', DELAY_RULES.values(), ids=DELAY_RULES)
@given(latency=st.integers(-(10**9), 10**9), taken_rows=rows, chunk=rows)
def test_no_rule_skips_what_a_chunk_does_not_have(rule, latency, taken_rows, chunk):
    assert 0 <= rule(latency, taken_rows, chunk) <= chunk


@given(latency=st.integers(-(10**9), 10**9), taken_rows=rows, chunk=rows)
def test_no_row_is_skipped_that_the_robot_was_not_moving_for(latency, taken_rows, chunk):
    assert moving_time(latency, taken_rows, chunk) <= min(taken_rows, max(0, latency))


@pytest.mark.parametrize(
    ('rule', 'delay', 'skipped'),
    [
        ('moving_time', 21, 0),
        ('elapsed_time', 21, 21),
        ('lerobot', 21, 21),
        ('moving_time', 99, 0),
        ('elapsed_time', 99, 30),
        ('lerobot', 99, 30),
        ('moving_time', -4, 0),
        ('elapsed_time', -4, 0),
        ('lerobot', -4, 26),
        ('lerobot', -99, 0),
    ],
)
def test_the_first_chunk_of_thirty(rule, delay, skipped):
    queue = ActionQueue(DELAY_RULES[rule])
    of = ChunkSource(1, 7, 0, 'episode', 0, 'prod', 'fake@0')
    robot = np.zeros((30, 2), np.float32)
    assert queue.replace(robot, of, mark=queue.mark(), delay_rows=delay) == skipped
    assert queue.rows_left == 30 - skipped


def test_the_safe_rule_is_the_one_that_is_not_chosen():
    assert ActionQueue().rule is moving_time
