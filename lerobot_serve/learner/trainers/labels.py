# SPDX-License-Identifier: Apache-2.0
"""
The chunk that each row teaches: the commands from this row on, relative to its state. Pure.

A chunk ends where its run of rows ends: at the end of the episode, where another source takes
over, and where a row is left out. What would have followed is not known, and the last row repeated
would be a command without a source: a hand that stops where a person took it over. The rest of
a chunk is masked, as LeRobot does at the end of an episode.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import BoolArray, Float32Array
from lerobot_serve.learner.trainers.sampling import Int64Array


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
