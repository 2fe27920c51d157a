# SPDX-License-Identifier: Apache-2.0
"""For how long there is something to play: rows end when played, or when they are too old."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.edge.queue.action_queue import ActionQueue, ChunkSource

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
