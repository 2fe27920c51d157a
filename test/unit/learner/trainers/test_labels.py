# SPDX-License-Identifier: Apache-2.0
"""The chunk that each row teaches: where it ends, and what is known of it."""

from __future__ import annotations

from hypothesis import given
import hypothesis.strategies as st
import numpy as np

from lerobot_serve.learner.trainers.sampling import chunks_of, run_ends


@st.composite
def recordings(draw):
    count = draw(st.integers(1, 30))
    flips = [draw(st.lists(st.booleans(), min_size=count, max_size=count)) for _ in range(3)]
    episode = np.cumsum(flips[0])
    source = np.where(np.cumsum(flips[1]) % 2, 'person', 'policy')
    # a gap is a row that was left out
    control_step = np.cumsum(1 + np.array(flips[2], int))
    return episode, source, control_step


def follows(recording, row):
    """Whether a row and the next are two control steps of one author, by definition."""
    episode, source, step = recording
    return (
        episode[row] == episode[row + 1]
        and source[row] == source[row + 1]
        and step[row] + 1 == step[row + 1]
    )


@given(recordings(), st.integers(1, 6))
def test_a_chunk_has_the_commands_from_its_row_until_its_run_ends(recording, length):
    count = len(recording[0])
    state = np.random.default_rng(1).normal(size=(count, 2)).astype(np.float32)
    action = np.random.default_rng(2).normal(size=(count, 2)).astype(np.float32)
    ends = run_ends(*recording)
    rows = np.arange(count)
    chunks, known = chunks_of(rows, ends, state=state, action=action, length=length)
    assert chunks.shape == (count, length, 2) and chunks.dtype == np.float32
    for row in rows:
        here, wanted = row, []
        while True:
            wanted.append(action[here] - state[row])
            if here + 1 >= count or len(wanted) == length or not follows(recording, here):
                break
            here += 1
        assert known[row].tolist() == [i < len(wanted) for i in range(length)]
        assert np.array_equal(chunks[row, : len(wanted)], wanted)
        assert (chunks[row, len(wanted) :] == wanted[-1]).all()


def test_only_the_asked_rows_are_returned():
    ends = run_ends(np.zeros(9, int), np.full(9, 'policy'), np.arange(9))
    assert ends.tolist() == [9] * 9
    action = np.arange(9, dtype=np.float32)[:, None]
    state = np.full((9, 1), 100, np.float32)
    chunks, known = chunks_of(np.array([2, 8]), ends, state=state, action=action, length=3)
    assert chunks[:, :, 0].tolist() == [[-98, -97, -96], [-92, -92, -92]]
    assert known.tolist() == [[True] * 3, [True, False, False]]


def test_nothing_has_no_ends():
    empty = np.empty(0, int)
    assert len(run_ends(empty, np.empty(0, np.str_), empty)) == 0
