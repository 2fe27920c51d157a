# SPDX-License-Identifier: Apache-2.0
"""Compares the recorded and the replayed reply to a request. Pure functions; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf

import numpy as np

from lerobot_serve.arrays import Float32Array, Float64Array
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.schema import Flag, Status

# exceeds the effect of another order of float32 sums: docs/bags.md
TOLERANCE = 1e-4


class MatchLevel(Enum):
    """Result of a comparison, from best to worst."""

    IDENTICAL = 'identical'
    WITHIN = 'within'
    BEYOND = 'beyond'
    # not comparable: one of the replies has no actions, or its hidden state is unknown
    MISSING = 'missing'


@dataclass(frozen=True, slots=True)
class ReplyComparison:
    """
    Result for one reply. `difference` is the largest difference of two values, relative for values
    above 1; `why` is the reason if the values are not comparable.
    """

    likeness: MatchLevel
    difference: float = 0.0
    why: str = ''


def compare_replies(then: Chunk, now: Chunk, tolerance: float = TOLERANCE) -> ReplyComparison:
    """Compare two replies."""
    if then.status != now.status:
        why = f'{status_name(then.status)} recorded, {status_name(now.status)} replayed: '
        why += then.status_text or now.status_text
        is_gone = then.status == Status.OK
        return ReplyComparison(MatchLevel.MISSING if is_gone else MatchLevel.BEYOND, inf, why)
    if lost_state(now) and not lost_state(then):
        why = 'the recording begins within the episode: the hidden state is unknown'
        return ReplyComparison(MatchLevel.MISSING, inf, why)
    pairs = ((then.robot, now.robot), (then.model, now.model))
    if any(a.shape != b.shape for a, b in pairs):
        return ReplyComparison(
            MatchLevel.BEYOND,
            inf,
            f'{then.robot.shape} actions recorded, {now.robot.shape} replayed',
        )
    if all(a.tobytes() == b.tobytes() for a, b in pairs):
        return ReplyComparison(MatchLevel.IDENTICAL)
    difference = max(largest_difference(a, b) for a, b in pairs)
    is_within = difference <= tolerance
    return ReplyComparison(MatchLevel.WITHIN if is_within else MatchLevel.BEYOND, difference)


def largest_difference(then: Float32Array, now: Float32Array) -> float:
    """Return the largest difference, relative for recorded values above 1."""
    if not then.size:
        return 0.0
    before = then.astype(np.float64)
    # the difference of values that are not finite is infinite
    with np.errstate(all='ignore'):
        differences = np.abs(before - now) / np.maximum(1.0, np.abs(before))
    largest = float(differences.max())
    return largest if np.isfinite(largest) else inf


def divergence(then: Chunk, now: Chunk) -> Float64Array | None:
    """
    Return the mean distance of each action over the common rows, in the robot's units; None
    without common rows.
    """
    rows = min(len(then.robot), len(now.robot))
    if not rows or then.robot.shape[1] != now.robot.shape[1]:
        return None
    distances = np.abs(then.robot[:rows].astype(np.float64) - now.robot[:rows])
    means: Float64Array = distances.mean(axis=0)
    return means


def lost_state(chunk: Chunk) -> bool:
    return bool(chunk.header.flags & Flag.STATE_LOST)


def status_name(status: int) -> str:
    """Return the name of a status, also of an unknown one."""
    return Status(status).name.lower() if status in tuple(Status) else f'status {status}'
