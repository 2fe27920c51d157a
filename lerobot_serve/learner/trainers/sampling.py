# SPDX-License-Identifier: Apache-2.0
"""
Which rows of a dataset are examples, how often each is drawn, and the chunk that each teaches: the
commands from this row on, relative to its state. Pure; any thread.

A row teaches what was commanded in it. So it needs an author who is worth imitating: a person, or
a policy in an episode that succeeded by itself. An episode that a person corrected says nothing
good of the policy's part in it, and the fallback ladder, an interlock, an operator's pause and a
teardown are no authors at all.

A chunk ends where its run of rows ends: at the end of the episode, where another source takes
over, and where a row is left out. What would have followed is not known, and the last row repeated
would be a command without a source: a hand that stops where a person took it over. The rest of
a chunk is masked, as LeRobot does at the end of an episode.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import BoolArray, Float32Array, Float64Array

PERSON, POLICY = 'person', 'policy'
Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RowAuthors:
    """
    Of each row: the index of its episode, and who commanded (`complementary_info.source`).
    `succeeded` are the episodes with the outcome success.
    """

    episode: Int64Array
    source: NDArray[np.str_]
    succeeded: frozenset[int]

    def by_person(self) -> BoolArray:
        """Return which rows a person commanded."""
        return np.asarray(self.source == PERSON)


def is_example(rows: RowAuthors) -> BoolArray:
    """Return which rows are examples."""
    by_person = rows.by_person()
    corrected = set(rows.episode[by_person].tolist())
    alone = np.isin(rows.episode, sorted(rows.succeeded - corrected))
    return np.asarray(by_person | ((rows.source == POLICY) & alone))


def row_weights(rows: RowAuthors, *, intervention_weight: float) -> Float64Array:
    """Return the weight of each row within its kind, new or old; 0 for what is not an example."""
    weights = np.where(rows.by_person(), intervention_weight, 1.0)
    return np.where(is_example(rows), weights, 0.0)


def is_new(rows: RowAuthors, new_episodes: Set[int]) -> BoolArray:
    """Return which rows are of episodes that came since the last round."""
    return np.isin(rows.episode, sorted(new_episodes))


def draw_rows(weights: Float64Array, new: BoolArray, *, count: int, seed: int) -> Int64Array:
    """
    Return `count` rows: every other one of a new episode, so that half of each batch is; all of
    one kind where the other has no example. Within a kind a row comes as often as its weight says.

    Raises ValueError if no row has a weight.
    """
    kinds = [kind for kind in (weights * new, weights * ~new) if kind.any()]
    if not kinds:
        raise ValueError('no row has a weight')
    uniform = np.random.default_rng(seed).random(count)
    drawn = np.empty(count, np.int64)
    for number, kind in enumerate(kinds):
        own = slice(number, None, len(kinds))
        drawn[own] = _draw(kind, uniform[own])
    return drawn


def _draw(weights: Float64Array, uniform: Float64Array) -> Int64Array:
    """Return the row of each number in [0, 1), by the shares of the weights."""
    rows = np.flatnonzero(weights)
    ends = np.cumsum(weights[rows])
    places = np.searchsorted(ends, uniform * ends[-1], side='right')
    # rounding may put the last number at the very end
    return np.asarray(rows[np.minimum(places, len(rows) - 1)], np.int64)


def run_ends(
    episode: Int64Array, source: NDArray[np.str_], control_step: Int64Array
) -> Int64Array:
    """Return for each row the number of the first row behind its run."""
    count = len(episode)
    if not count:
        return np.empty(0, np.int64)
    follows = (
        (episode[1:] == episode[:-1])
        & (source[1:] == source[:-1])
        & (control_step[1:] == control_step[:-1] + 1)
    )
    ends = np.append(np.flatnonzero(~follows) + 1, count)
    return np.asarray(ends[np.searchsorted(ends, np.arange(count), side='right')], np.int64)


def chunks_of(
    rows: Int64Array, ends: Int64Array, *, state: Float32Array, action: Float32Array, length: int
) -> tuple[Float32Array, BoolArray]:
    """
    Return the chunks of some rows, N x length x actions, and which of their rows are known, N x
    length. What is not known repeats the last known row, so that every number is finite.
    """
    wanted = rows[:, None] + np.arange(length)
    last = ends[rows, None] - 1
    chunks = action[np.minimum(wanted, last)] - state[rows, None]
    return np.asarray(chunks, np.float32), np.asarray(wanted <= last)
