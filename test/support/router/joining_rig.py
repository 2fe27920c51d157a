# SPDX-License-Identifier: Apache-2.0
"""A joiner with little room, and what arrives at it."""

from __future__ import annotations

import numpy as np

from lerobot_serve.router.shadow.sample_joiner import ChunkDraw, NO_ROWS, RequestKey, SampleJoiner
from support.router.shadow_rig import run, S

CAPACITY, VALUES, AGE_NS = 8, 400, 30 * S
ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)


def joiner(**limits: int) -> SampleJoiner:
    given = {'capacity': CAPACITY, 'values_limit': VALUES, 'age_limit_ns': AGE_NS, **limits}
    return SampleJoiner(**given)


def draw(
    rows: np.ndarray = ROWS, policy: str = 'act@1', seed: int = 0, now_ns: int = 0
) -> ChunkDraw:
    return ChunkDraw(rows, policy, seed, now_ns)


def begin(join: SampleJoiner, of: RequestKey, *, without: str = '', now_ns: int = 0) -> None:
    """Let everything but what was executed arrive."""
    if without != 'request':
        join.request(of, 'e-1', now_ns)
    if without != 'live':
        join.live(of, draw(now_ns=now_ns))
    if without != 'shadow':
        join.shadow(of, draw(2 * ROWS, 'act@2', now_ns=now_ns))


def execute(join: SampleJoiner, of: RequestKey, first: int = 0, rows: np.ndarray = ROWS) -> None:
    join.executed(of.client_id, run(of, first, rows), NO_ROWS)


def take(join: SampleJoiner, now_ns: int = 0) -> list[int]:
    """Return the numbers of the requests that became whole."""
    return [sample.key.seq for sample in join.take(now_ns)]
