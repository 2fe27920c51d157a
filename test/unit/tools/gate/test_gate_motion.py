# SPDX-License-Identifier: Apache-2.0
"""How a policy moves, from its chunks: velocities, similarity, cage."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import MsgType, Status
from lerobot_serve.router.shadow.remote_cage import RemoteCage
from lerobot_serve.tools.gate import motion
from lerobot_serve.tools.gate.figures import TaskFigures
from lerobot_serve.tools.gate.motion import (
    PolicyMotion,
    shared_motion,
    Velocities,
    velocity_distances,
)

HEADER = Header(1, 1, 1, 1, 1, MsgType.CHUNK)


def walk(seed: int, rows: int = 400, scale: float = 1.0) -> np.ndarray:
    steps = np.random.default_rng(seed).normal(scale=scale, size=(rows, 3))
    return np.cumsum(steps, axis=0).astype(np.float32)


def velocities(*chunks: np.ndarray) -> Velocities:
    found = Velocities()
    for rows in chunks:
        found.add(rows)
    return found


def test_the_distance_is_that_of_sorted_velocities_in_spreads():
    """Of samples of one size it is the mean distance of the sorted values."""
    old, new = velocities(walk(1)), velocities(walk(2, scale=1.7))
    expected = [
        np.abs(np.sort(a) - np.sort(b)).mean() / a.std()
        for a, b in zip(old.values.T, new.values.T, strict=True)
    ]
    assert velocity_distances(old, new) == pytest.approx(expected, rel=0.03)
    assert velocity_distances(old, old) == pytest.approx([0, 0, 0])


def test_an_action_that_never_moved_counts_once_it_moves():
    still = walk(1)
    still[:, 2] = 0.5
    moved = still.copy()
    moved[:, 2] += 0.1 * np.arange(len(moved))
    assert velocity_distances(velocities(still), velocities(moved))[2] > 10


def test_without_data_or_with_other_actions_there_is_no_distance():
    assert not len(velocity_distances(Velocities(), velocities(walk(1))))
    assert not len(velocity_distances(velocities(walk(1)[:1]), velocities(walk(1))))
    assert not len(velocity_distances(velocities(walk(1)[:, :2]), velocities(walk(1))))


@given(st.lists(st.integers(0, 40), max_size=60))
def test_thinning_keeps_every_nth_row(sizes):
    """However chunks are cut, the kept velocities are evenly spaced among all."""
    numbers, chunks = 0, []
    for size in sizes:
        steps = np.arange(numbers, numbers + size, dtype=np.float64)
        numbers += size
        chunks.append(np.concatenate(([0.0], np.cumsum(steps)))[:, None])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(motion, 'VELOCITIES_LIMIT', 50)
        found = velocities(*chunks)
    kept = found.values[:, 0] if len(found.values) else np.zeros(0)
    assert len(kept) <= 50 + 40
    stride = found._stride
    assert kept == pytest.approx(np.arange(0, numbers, stride), abs=1e-6)


def alike(parent: np.ndarray, candidate: np.ndarray) -> float:
    return shared_motion(parent, candidate).similarity


def test_similarity_is_the_cosine_of_motions():
    rows = walk(4, 20)
    assert alike(rows, rows) == pytest.approx(1.0)
    assert alike(rows, 2 * rows[:1] - rows) == pytest.approx(-1.0)
    assert alike(rows, rows[:10]) == pytest.approx(1.0)
    assert math.isnan(alike(rows[:1].repeat(5, 0), rows[:1].repeat(5, 0)))
    assert shared_motion(rows, rows[:, :2]) is None
    assert shared_motion(rows[:0], rows) is None
    # one that stands still is not like one that moves
    assert alike(rows, rows[:1].repeat(20, 0)) == 0.0


def test_a_large_motion_counts_more_than_trembling_at_the_target():
    found = TaskFigures()
    found.add(shared_motion(100 * walk(4, 20), 100 * walk(4, 20)))
    for seed in range(50):
        found.add(shared_motion(0.01 * walk(seed, 20), 0.01 * walk(seed + 100, 20)))
    assert found.chunks == 51
    assert found.similarity > 0.99


def cage() -> RemoteCage:
    limit = ActionLimit('x', 'x', Motion.POSITION, -10.0, 10.0, max_step=0.5)
    return RemoteCage(MotionLimits((limit,), 1 / 30))


@pytest.mark.parametrize(('step', 'changed'), [(0.1, 0), (0.4, 0), (0.6, 1)])
def test_a_chunk_that_the_cage_would_change_is_counted(step, changed):
    found = PolicyMotion()
    rows = (step * np.arange(10, dtype=np.float32))[:, None]
    found.add(Chunk(HEADER, 'r', 'e', rows, rows, inference_ms=3.0), cage())
    assert (found.chunks, found.caged, found.changed) == (1, 1, changed)
    # limits of another robot say nothing
    found.add(Chunk(HEADER, 'r', 'e', walk(1), walk(1)), cage())
    found.add(Chunk(HEADER, 'r', 'e', rows, rows), None)
    assert (found.chunks, found.caged) == (3, 1)


@pytest.mark.parametrize(('jump', 'changed'), [(0.0, 0), (0.4, 0), (-0.6, 1)])
def test_a_jump_into_a_chunk_is_seen(jump, changed):
    found = PolicyMotion()
    rows = (0.1 * np.arange(10, dtype=np.float32))[:, None]
    before = np.full((1, 1), -jump, np.float32)
    found.add(Chunk(HEADER, 'r', 'e', rows, rows), cage(), before)
    assert found.changed == changed


def test_a_failed_reply_is_no_motion():
    found = PolicyMotion()
    found.add(Chunk(HEADER, 'r', 'e', status=Status.NOT_FINITE, status_text='NaN'), cage())
    assert (found.failed, found.first_failure) == (1, 'NaN')
    assert np.isnan(found.latencies.p99_ms)
