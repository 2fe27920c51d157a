# SPDX-License-Identifier: Apache-2.0
"""Compares the recorded and the replayed reply to a request. Pure functions; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf

import numpy as np

from lerobot_serve.arrays import Float32Array, Float64Array
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.schema import Flag, Status

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

    level: MatchLevel
    difference: float = 0.0
    why: str = ''


def compare_replies(
    recorded: Chunk, replayed: Chunk, tolerance: float = TOLERANCE
) -> ReplyComparison:
    """Compare two replies."""
    if recorded.status != replayed.status:
        why = f'{status_name(recorded.status)} recorded, {status_name(replayed.status)} replayed: '
        why += recorded.status_text or replayed.status_text
        is_missing = recorded.status == Status.OK
        return ReplyComparison(MatchLevel.MISSING if is_missing else MatchLevel.BEYOND, inf, why)
    if lost_state(replayed) and not lost_state(recorded):
        why = 'the recording begins within the episode: the hidden state is unknown'
        return ReplyComparison(MatchLevel.MISSING, inf, why)
    pairs = ((recorded.robot, replayed.robot), (recorded.model, replayed.model))
    if any(a.shape != b.shape for a, b in pairs):
        return ReplyComparison(
            MatchLevel.BEYOND,
            inf,
            f'{recorded.robot.shape} actions recorded, {replayed.robot.shape} replayed',
        )
    if all(a.tobytes() == b.tobytes() for a, b in pairs):
        return ReplyComparison(MatchLevel.IDENTICAL)
    difference = max(largest_difference(a, b) for a, b in pairs)
    is_within = difference <= tolerance
    return ReplyComparison(MatchLevel.WITHIN if is_within else MatchLevel.BEYOND, difference)


def largest_difference(recorded: Float32Array, replayed: Float32Array) -> float:
    """Return the largest difference, relative for recorded values above 1."""
    if not recorded.size:
        return 0.0
    before = recorded.astype(np.float64)
    # the difference of values that are not finite is infinite
    with np.errstate(all='ignore'):
        differences = np.abs(before - replayed) / np.maximum(1.0, np.abs(before))
    largest = float(differences.max())
    return largest if np.isfinite(largest) else inf


def divergence(recorded: Chunk, replayed: Chunk) -> Float64Array | None:
    """
    Return the mean distance of each action over the common rows, in the robot's units; None
    without common rows.
    """
    rows = min(len(recorded.robot), len(replayed.robot))
    if not rows or recorded.robot.shape[1] != replayed.robot.shape[1]:
        return None
    distances = np.abs(recorded.robot[:rows].astype(np.float64) - replayed.robot[:rows])
    means: Float64Array = distances.mean(axis=0)
    return means


def lost_state(chunk: Chunk) -> bool:
    return bool(chunk.header.flags & Flag.STATE_LOST)


def status_name(status: int) -> str:
    """Return the name of a status, also of an unknown one."""
    return Status(status).word
