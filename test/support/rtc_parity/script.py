# SPDX-License-Identifier: Apache-2.0
"""Random scripts of delays: what a robot, its network and its server do to a queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STEP_S = 1 / 30
HORIZONS = (0, 4, 8, 16)
RULES = ('lerobot', 'elapsed_time', 'moving_time')


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """
    One request: how many rows are played before it, how long its answer takes, and how many rows
    are played meanwhile, which are fewer where the robot is paused.
    """

    rows_before: int
    latency_s: float
    rows_meanwhile: int


@dataclass(frozen=True, slots=True)
class Script:
    """An episode; `rule` is how the queue counts a delay, `horizon` 0 that of the policy."""

    number: int
    horizon: int
    rule: str
    turns: tuple[ScriptedRequest, ...]


def random_script(number: int, *, turns: int, chunk_rows: int) -> Script:
    """Return the script of this number, which is always the same."""
    random = np.random.default_rng([16, number])
    return Script(
        number,
        int(random.choice(HORIZONS)),
        str(random.choice(RULES)),
        tuple(_turn(random, chunk_rows) for _ in range(turns)),
    )


def _turn(random: np.random.Generator, chunk_rows: int) -> ScriptedRequest:
    """Answers at once, usual ones, and ones that come when everything has been played."""
    longest_s = random.choice([0.01, 6 * STEP_S, 1.5 * chunk_rows * STEP_S], p=[0.2, 0.6, 0.2])
    latency_s = float(random.uniform(0.0, longest_s))
    passed = int(latency_s / STEP_S)
    paused = random.random() < 0.15
    meanwhile = int(random.integers(0, passed + 1)) if paused else passed
    # now and then the queue runs dry before the next request
    before = int(random.integers(0, chunk_rows + 3 if random.random() < 0.1 else chunk_rows // 2))
    return ScriptedRequest(before, latency_s, meanwhile)
