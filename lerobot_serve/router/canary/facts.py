# SPDX-License-Identifier: Apache-2.0
"""
The facts of both slots, and their growth since a step of the canary began.

Counters only grow while the process that counts runs; after its restart they begin at 0. So only
their growth is used. Episodes come one by one, as events. Owned by the executor thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
import math

from lerobot_serve.router.canary.trial import ArmCounts, EpisodeEvent

COUNTERS_LIMIT = 10**15


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """One slot. The counters may begin anywhere; the rest is as of now."""

    answers: int = 0
    failed_replies: int = 0
    commands: int = 0
    # commands from a rung of the ladder instead of a chunk
    fallbacks: int = 0
    # commands that the safety cage changed
    trips: int = 0
    # nan: too few answers to tell
    latency_ms_p95: float = math.nan
    oldest_age_s: float = 0.0
    healthy: bool = False
    health_text: str = ''
    # its fingerprint; empty: not known
    policy: str = ''
    # episodes that began in this step, filled in by the canary
    arm: ArmCounts = field(default_factory=ArmCounts)

    @property
    def reported(self) -> int:
        """Episodes that ended with a verdict."""
        return self.arm.success + self.arm.failure


COUNTERS = ('answers', 'failed_replies', 'commands', 'fallbacks', 'trips')
SLOTS = ('candidate', 'champion')


@dataclass(frozen=True, slots=True)
class Facts:
    """Both slots, and how far the candidate differs from the champion on the same observations."""

    candidate: SlotFacts
    champion: SlotFacts
    # in spreads of the champion itself; nan: not measured
    divergence: float = math.nan
    divergence_samples: int = 0
    # episodes that began or ended since the facts before, in order
    events: tuple[EpisodeEvent, ...] = ()
    # why the candidate may take no traffic yet, for example hours that it has to be shadowed
    missing: str = ''


class CounterGrowth:
    """Adds up by how much the counters grew."""

    def __init__(self) -> None:
        self._totals = {slot: SlotFacts() for slot in SLOTS}
        self._seen: dict[str, SlotFacts] = {}

    def add(self, facts: Facts) -> dict[str, dict[str, int]]:
        """Take the facts of a look; return by how much each slot's counters grew."""
        grown = {}
        for slot in SLOTS:
            now: SlotFacts = getattr(facts, slot)
            grown[slot] = counter_growth(self._seen.get(slot, now), now)
            total = self._totals[slot]
            more = {name: getattr(total, name) + grown[slot][name] for name in COUNTERS}
            self._totals[slot] = replace(total, **more)
        self.skip(facts)
        return grown

    def skip(self, facts: Facts) -> None:
        """Take the facts of a look without counting what grew."""
        self._seen = {slot: getattr(facts, slot) for slot in SLOTS}

    def since_begin(self, facts: Facts, arms: dict[str, ArmCounts]) -> Facts:
        """Return the facts with the counters since `restart`, and these episodes."""
        counted = {
            slot: replace(
                getattr(facts, slot), **counters(self._totals[slot]), arm=replace(arms[slot])
            )
            for slot in SLOTS
        }
        return replace(facts, **counted)

    def restart(self) -> None:
        """Count from here on, from 0."""
        self._totals = {slot: SlotFacts() for slot in SLOTS}

    def memory(self) -> dict[str, dict[str, int]]:
        """Return what has to survive a restart."""
        return {slot: counters(total) for slot, total in self._totals.items()}

    def restore(self, memory: dict[str, dict[str, int]]) -> None:
        """Go on from what `memory` returned. Raises ValueError, KeyError or TypeError."""
        self._totals = {slot: SlotFacts(**_checked(memory[slot])) for slot in SLOTS}


def counters(slot: SlotFacts) -> dict[str, int]:
    """Return the counters alone."""
    return {name: getattr(slot, name) for name in COUNTERS}


def counter_growth(before: SlotFacts, now: SlotFacts) -> dict[str, int]:
    """Return by how much each counter grew; when one fell, all of them began again at 0."""
    was, is_ = counters(before), counters(now)
    again = any(is_[name] < was[name] for name in COUNTERS)
    return {name: max(0, is_[name] - (0 if again else was[name])) for name in COUNTERS}


def _checked(values: dict[str, int]) -> dict[str, int]:
    for name in COUNTERS:
        if type(values[name]) is not int or not 0 <= values[name] <= COUNTERS_LIMIT:
            raise ValueError(f'{name} is {values[name]!r}')
    return {name: values[name] for name in COUNTERS}
