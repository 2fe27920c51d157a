# SPDX-License-Identifier: Apache-2.0
"""
Which rows of a dataset are examples, and how often each is drawn. Pure; any thread.

A row teaches what was commanded in it. So it needs an author who is worth imitating: a person, or
a policy in an episode that succeeded by itself. An episode that a person corrected says nothing
good of the policy's part in it, and the fallback ladder, an interlock, an operator's pause and a
teardown are no authors at all.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import BoolArray, Float64Array

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
    """Return the weight of each row within its kind, new or old; 0 for what is no example."""
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
