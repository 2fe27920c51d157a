# SPDX-License-Identifier: Apache-2.0
"""Counts of one role, one slot and one policy. Plain; one thread."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from lerobot_serve.tools.stats.quantile_sketch import QuantileSketch

# limit of names, since a trace may contain arbitrary ones
NAMES_LIMIT = 256
OTHER = 'other'
DURATIONS = ('round_trip_ms', 'inference_ms', 'queue_wait_ms')


class GroupKey(NamedTuple):
    """Role, slot and policy of a tally; slot and policy are empty if unknown."""

    role: str
    slot: str
    policy: str


@dataclass(slots=True)
class GroupStats:
    """
    Counts since the beginning of the traces.

    outcomes   of episodes that the policy did alone
    helped     outcomes of episodes in which a person commanded: they say nothing of the policy
    by_person  commands of a person who had taken over
    fallbacks  commands that were not played, by rung
    stalls     how often playing ended with nothing left
    trips      commands that the cage changed or stopped
    """

    episodes: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    helped: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    durations: dict[str, QuantileSketch] = field(
        default_factory=lambda: {name: QuantileSketch() for name in DURATIONS}
    )
    actions: int = 0
    trips: int = 0
    by_person: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    stalls: int = 0
    oldest_age_s: float = 0.0
    drops: Counter[str] = field(default_factory=Counter)


def count_bounded(counter: Counter[str], name: str, by: int = 1) -> None:
    """Count a name; names above the limit count as OTHER."""
    if name not in counter and len(counter) >= NAMES_LIMIT:
        name = OTHER
    counter[name] += by
