# SPDX-License-Identifier: Apache-2.0
"""QoS profiles as rosbag2 writes them: a list in YAML. Pure functions; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

SECOND_NS = 10**9
# an unlimited duration in rmw [ns]
INFINITE_NS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class OfferedProfile:
    """The profile of a publisher, in the terms of rmw: keep_last, reliable, transient_local."""

    history: str = 'keep_last'
    depth: int = 10
    reliability: str = 'reliable'
    durability: str = 'volatile'
    deadline_ns: int = INFINITE_NS
    lifespan_ns: int = INFINITE_NS
    liveliness: str = 'automatic'
    liveliness_lease_ns: int = INFINITE_NS

    def as_table(self) -> dict[str, Any]:
        """Return the profile in the format of a bag."""
        return {
            'history': self.history,
            'depth': self.depth,
            'reliability': self.reliability,
            'durability': self.durability,
            'deadline': _time(self.deadline_ns),
            'lifespan': _time(self.lifespan_ns),
            'liveliness': self.liveliness,
            'liveliness_lease_duration': _time(self.liveliness_lease_ns),
            'avoid_ros_namespace_conventions': False,
        }


@lru_cache(maxsize=1024)
def as_yaml(profiles: tuple[OfferedProfile, ...]) -> str:
    """
    Return the profiles in the format of the channel of a bag; a recorder of episodes writes the
    same ones again for each of them.
    """
    return str(yaml.safe_dump([profile.as_table() for profile in profiles], sort_keys=False))


def from_yaml(text: str) -> tuple[OfferedProfile, ...]:
    """Return the profiles of a channel; the default one for a text that cannot be read."""
    try:
        return tuple(
            OfferedProfile(
                **{
                    name: entry[name] for name in ('history', 'depth', 'reliability', 'durability')
                },
                deadline_ns=_nanoseconds(entry['deadline']),
                lifespan_ns=_nanoseconds(entry['lifespan']),
                liveliness=entry['liveliness'],
                liveliness_lease_ns=_nanoseconds(entry['liveliness_lease_duration']),
            )
            for entry in yaml.safe_load(text)
        )
    except (yaml.YAMLError, ValueError, KeyError, TypeError):
        return (OfferedProfile(),)


def _nanoseconds(time: dict[str, int]) -> int:
    return time['sec'] * SECOND_NS + time['nsec']


def _time(nanoseconds: int) -> dict[str, int]:
    return {'sec': nanoseconds // SECOND_NS, 'nsec': nanoseconds % SECOND_NS}
