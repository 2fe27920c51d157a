"""A joiner with little room, and what arrives at it."""

from __future__ import annotations

import numpy as np
from shadow_rig import run, S

from lerobot_serve.router.shadow.joining import Draw, Joiner, Key, NO_ROWS

CAPACITY, VALUES, AGE_NS = 8, 400, 30 * S
ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)


def joiner(**limits: int) -> Joiner:
    given = {'capacity': CAPACITY, 'values_limit': VALUES, 'age_limit_ns': AGE_NS, **limits}
    return Joiner(**given)


def draw(rows: np.ndarray = ROWS, policy: str = 'act@1', seed: int = 0, now_ns: int = 0) -> Draw:
    return Draw(rows, policy, seed, now_ns)


def begin(join: Joiner, of: Key, *, without: str = '', now_ns: int = 0) -> None:
    """Let everything but what was executed arrive."""
    if without != 'request':
        join.request(of, 'e-1', now_ns)
    if without != 'live':
        join.live(of, draw(now_ns=now_ns))
    if without != 'shadow':
        join.shadow(of, draw(2 * ROWS, 'act@2', now_ns=now_ns))


def execute(join: Joiner, of: Key, first: int = 0, rows: np.ndarray = ROWS) -> None:
    join.executed(of.client_id, run(of, first, rows), NO_ROWS)


def take(join: Joiner, now_ns: int = 0) -> list[int]:
    """Return the numbers of the requests that became whole."""
    return [sample.key.seq for sample in join.take(now_ns)]
