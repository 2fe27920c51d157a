# SPDX-License-Identifier: Apache-2.0
"""Examples of a dataset: which rows, how often each is drawn, and the chunk that each teaches."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
import hypothesis.strategies as st
import numpy as np
import pytest

from lerobot_serve.learner.trainers.sampling import (
    chunks_of,
    draw_rows,
    is_example,
    is_new,
    row_weights,
    RowAuthors,
    run_ends,
)

SOURCES = ('policy', 'person', 'ladder', 'interlock', 'teardown', 'operator', 'none')
EPISODES = range(4)


@st.composite
def authors(draw) -> RowAuthors:
    lengths = draw(st.lists(st.integers(0, 8), min_size=4, max_size=4))
    episode = np.repeat(np.arange(4), lengths)
    source = draw(st.lists(st.sampled_from(SOURCES), min_size=len(episode), max_size=len(episode)))
    return RowAuthors(
        episode, np.array(source, np.str_), draw(st.frozensets(st.sampled_from(EPISODES)))
    )


def rows_of(*episodes: str, succeeded=()) -> RowAuthors:
    """Episodes by the first letters of their sources: p for policy, h for a person, l, ..."""
    letters = {'p': 'policy', 'h': 'person', 'l': 'ladder'}
    episode = np.repeat(np.arange(len(episodes)), [len(each) for each in episodes])
    return RowAuthors(
        episode,
        np.array([letters[letter] for each in episodes for letter in each], np.str_),
        frozenset(succeeded),
    )


@pytest.mark.parametrize(
    ('source', 'succeeded', 'corrected'), product(SOURCES, (False, True), (False, True))
)
def test_who_is_worth_imitating(source, succeeded, corrected):
    """Every combination: the row, the outcome of its episode, a person in another row of it."""
    others = ['person'] if corrected else []
    rows = RowAuthors(
        np.zeros(1 + len(others), int),
        np.array([source, *others], np.str_),
        frozenset({0} if succeeded else ()),
    )
    wanted = source == 'person' or (source == 'policy' and succeeded and not corrected)
    assert is_example(rows)[0] == wanted


@given(authors(), st.sampled_from((1.0, 3.0, 10.0)))
def test_weights_are_of_examples_and_a_person_counts_more(rows, factor):
    weights = row_weights(rows, intervention_weight=factor)
    assert ((weights > 0) == is_example(rows)).all()
    assert (weights[rows.source == 'person'] == factor).all()
    assert set(weights[rows.source == 'policy'].tolist()) <= {0.0, 1.0}


@given(
    authors(),
    st.frozensets(st.sampled_from(EPISODES)),
    st.integers(1, 200),
    st.integers(0, 2**63),
)
def test_a_draw_has_examples_only_half_of_them_new_and_repeats(rows, new_episodes, count, seed):
    weights = row_weights(rows, intervention_weight=3.0)
    new = is_new(rows, new_episodes)
    if not weights.any():
        with pytest.raises(ValueError, match='no row'):
            draw_rows(weights, new, count=count, seed=seed)
        return
    drawn, again = (draw_rows(weights, new, count=count, seed=seed) for _ in range(2))
    assert (drawn == again).all() and len(drawn) == count
    assert (weights[drawn] > 0).all()
    both = (weights * new).any() and (weights * ~new).any()
    if both:
        assert (new[drawn] == (np.arange(count) % 2 == 0)).all()
    else:
        assert (new[drawn] == (weights * new).any()).all()


def test_another_seed_draws_others():
    rows = rows_of('h' * 500)
    weights = row_weights(rows, intervention_weight=3.0)
    first, second = (
        draw_rows(weights, is_new(rows, set()), count=100, seed=seed) for seed in (1, 2)
    )
    assert (first != second).any()


def test_a_person_is_drawn_as_often_as_the_weight_says():
    rows = rows_of('pppp', 'hhhh', succeeded={0})
    weights = row_weights(rows, intervention_weight=3.0)
    drawn = draw_rows(weights, is_new(rows, {0, 1}), count=20_000, seed=4)
    counts = Counter(rows.source[drawn].tolist())
    assert 2.8 < counts['person'] / counts['policy'] < 3.2
    assert set(drawn.tolist()) == set(range(8))


def test_few_new_rows_have_half_of_the_draws():
    rows = rows_of('h' * 1000, 'hh')
    weights = row_weights(rows, intervention_weight=3.0)
    drawn = draw_rows(weights, is_new(rows, {1}), count=1000, seed=4)
    assert (drawn >= 1000).sum() == 500


def test_what_the_ladder_did_in_a_success_is_no_example():
    assert is_example(rows_of('plp', succeeded={0})).tolist() == [True, False, True]
    assert not is_example(rows_of('plp')).any()


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
