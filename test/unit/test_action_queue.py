"""The queue: what is played was predicted, in its order, and nothing is ever blended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.edge.queue import ActionQueue, Planned, Source


def source(seq: int, captured_ns: int = 0) -> Source:
    return Source(seq, 7, 0, 'episode', captured_ns, 'prod', 'fake@0')


def chunk(rows: int, first: float = 0.0) -> np.ndarray:
    return np.arange(first, first + 2 * rows, dtype=np.float32).reshape(rows, 2)


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
    assert queue.replace(chunk(3), source(1), delay_rows=2, rows_taken=0) == 0
    assert played(queue) == [(1, 0), (1, 1), (1, 2)]


def test_replace_skips_the_rows_that_were_lived_through_since_the_request():
    queue = ActionQueue()
    queue.append(chunk(5), source(1))
    queue.take()
    rows_taken = queue.rows_taken
    queue.take()
    queue.take()
    assert queue.replace(chunk(4), source(2), delay_rows=9, rows_taken=rows_taken) == 2
    assert played(queue) == [(2, 2), (2, 3)]


@pytest.mark.parametrize(('delay_rows', 'skipped'), [(0, 0), (1, 1), (-1, 0)])
def test_replace_skips_no_more_than_the_delay(delay_rows, skipped):
    queue = ActionQueue()
    queue.append(chunk(5), source(1))
    queue.take()
    queue.take()
    assert queue.replace(chunk(4), source(2), delay_rows=delay_rows, rows_taken=0) == skipped


def test_a_chunk_that_was_lived_through_leaves_nothing():
    queue = ActionQueue()
    queue.append(chunk(5), source(1))
    played(queue)
    assert queue.replace(chunk(3), source(2), delay_rows=9, rows_taken=0) == 3
    assert queue.rows_left == 0


def test_append_keeps_what_is_left_and_its_order():
    queue = ActionQueue()
    queue.append(chunk(3), source(1))
    queue.take()
    queue.append(chunk(2, 10.0), source(2))
    assert queue.rows_left == 4
    assert played(queue) == [(1, 1), (1, 2), (2, 0), (2, 1)]


def test_clear_forgets_and_counts():
    queue = ActionQueue()
    queue.append(chunk(3), source(1))
    queue.take()
    assert (queue.clear(), queue.rows_cleared) == (2, 2)
    assert queue.take() is None


def test_stale_rows_are_dropped_and_were_not_lived_through():
    queue = ActionQueue()
    queue.append(chunk(3), source(1, captured_ns=10))
    queue.append(chunk(2), source(2, captured_ns=20))
    queue.take()
    planned, dropped = queue.take_fresh(20)
    assert (planned.source.seq, planned.row, dropped) == (2, 0, 2)
    assert queue.rows_taken == 2
    assert queue.take_fresh(21) == (None, 1)
    assert queue.replace(chunk(3), source(3), delay_rows=9, rows_taken=2) == 0


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
            if step == 'append':
                queue.append(rows, source(number, captured_ns=number))
                assert queue.rows_left == before + len(rows)
            else:
                rows_taken = max(0, lived - details[2])
                skipped = queue.replace(
                    rows,
                    source(number, captured_ns=number),
                    delay_rows=details[1],
                    rows_taken=rows_taken,
                )
                assert 0 <= skipped <= min(max(0, details[1]), lived - rows_taken, len(rows))
                assert queue.rows_left == len(rows) - skipped
        assert queue.rows_taken == lived
    for planned in taken:
        row = chunks[planned.source.seq][planned.row]
        assert planned.action.tobytes() == row.tobytes()
    order = [(planned.source.seq, planned.row) for planned in taken]
    assert order == sorted(set(order))


def note(planned: Planned | None, taken: list[Planned]) -> int:
    taken += [planned] if planned else []
    return int(planned is not None)


def random_chunk(seed: int, rows: int) -> np.ndarray:
    """Return rows of bits that no arithmetic would give back by chance."""
    return np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)
