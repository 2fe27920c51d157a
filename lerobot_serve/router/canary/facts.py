# SPDX-License-Identifier: Apache-2.0
"""
The facts of both slots, and the growth of their counters since a step of the canary began.

Counters restart at 0 with the counting process, so that only their growth is used. Episodes arrive
as events. Owned by the executor thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
import math
from operator import add, attrgetter
from typing import Annotated, NamedTuple, TypeVar

from msgspec import Meta, Struct

T = TypeVar('T')
ARMS = ('candidate', 'champion')
CANDIDATE, CHAMPION = 'b', 'a'
ARM_OF_SLOT = {CANDIDATE: 'candidate', CHAMPION: 'champion'}
SLOT_OF_ARM = {arm: slot for slot, arm in ARM_OF_SLOT.items()}
ENDS = ('success', 'failure', 'aborted', 'moved', 'unreported')
BEGUN = 'begun'
COUNTERS_LIMIT = 10**15
# of a reason
TEXT_LIMIT = 1024
# of what is stored
Count = Annotated[int, Meta(ge=0, le=COUNTERS_LIMIT)]
ArmName = Annotated[str, Meta(pattern=rf'^({"|".join(ARMS)})\Z', description='an arm')]
OfArms = Annotated[dict[ArmName, T], Meta(min_length=2)]
# the fields of ArmCounts
StoredArm = Annotated[tuple[Count, ...], Meta(min_length=6, max_length=6)]


class EpisodeEvent(NamedTuple):
    """
    The begin or end of an episode in an arm; `what` is BEGUN or one of ENDS. A begin has the
    robot, empty if it is not known.
    """

    episode_id: str
    what: str
    arm: str
    robot: str = ''


@dataclass(slots=True)
class ArmCounts:
    """Numbers of episodes that began in one arm, in total and by end."""

    begun: int = 0
    success: int = 0
    failure: int = 0
    aborted: int = 0
    moved: int = 0
    unreported: int = 0

    @property
    def open(self) -> int:
        """Number of episodes without an end yet."""
        known = self.success + self.failure + self.aborted + self.moved + self.unreported
        return self.begun - known

    def count(self, what: str) -> None:
        """Add 1 to a counter."""
        setattr(self, what, getattr(self, what) + 1)


# as a StoredArm
arm_values: Callable[[ArmCounts], tuple[int, ...]] = attrgetter(*ArmCounts.__slots__)


def stored_counts(values: Sequence[int]) -> ArmCounts:
    """Return the counts of a StoredArm. Raises ValueError."""
    arm = ArmCounts(*values)
    if arm.open < 0:
        raise ValueError(f'more ends than episodes: {values!r}')
    return arm


def added(first: ArmCounts, second: ArmCounts) -> ArmCounts:
    """Return the sum of two counts."""
    return ArmCounts(*map(add, arm_values(first), arm_values(second)))


def without_open(arm: ArmCounts) -> ArmCounts:
    """Return the counts with the open episodes as unreported."""
    return replace(arm, unreported=arm.unreported + arm.open)


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """The facts of one slot: counters with any start value, and the current state."""

    replies: int = 0
    failed_replies: int = 0
    commands: int = 0
    # commands from a rung of the ladder instead of a chunk
    fallbacks: int = 0
    # commands that the safety cage changed
    trips: int = 0
    # robots that came to rest until a person acts: cage latched, stop service called
    halts: int = 0
    # nan with too few replies
    latency_ms_p95: float = math.nan
    oldest_age_s: float = 0.0
    healthy: bool = False
    health_text: str = ''
    # fingerprint; empty if unknown
    policy: str = ''
    # episodes that began in this step; set by the canary
    arm: ArmCounts = field(default_factory=ArmCounts)

    @property
    def reported(self) -> int:
        """Number of episodes with success or failure."""
        return self.arm.success + self.arm.failure


def not_ready_reason(name: str, slot: SlotFacts) -> str:
    """Return why the slot cannot be on trial; empty when it can."""
    if not slot.healthy:
        return f'the slot of the {name} is not healthy: {slot.health_text}'
    return '' if slot.policy else f'the policy of the {name} is not known yet'


def percentage(part: float, whole: float) -> float:
    """Return the percentage of `part` in `whole`; 0 if `whole` is 0."""
    return 100 * part / whole if whole else 0.0


class Counters(Struct):
    """The counters of a slot as they are stored."""

    replies: Count
    failed_replies: Count
    commands: Count
    fallbacks: Count
    trips: Count
    halts: Count


COUNTERS = Counters.__struct_fields__


class ArmGrowth(Counters):
    """The growth of the counters of an arm since a step began; see CounterGrowth."""

    # an older state has neither
    halts: Count = 0
    restarts: Count = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of both slots, and the divergence between candidate and champion."""

    candidate: SlotFacts
    champion: SlotFacts
    # in spreads of the champion; nan if not measured
    divergence: float = math.nan
    divergence_samples: int = 0
    # begins and ends of episodes since the previous facts, in order
    events: tuple[EpisodeEvent, ...] = ()
    # why the candidate may not receive traffic yet, for example unmet shadow hours
    missing: str = ''


class CounterGrowth:
    """
    Accumulates the growth of the counters; `arms` survives a restart of the router. `restarts`
    counts those of each arm: what is measured in a window begins with them, too.
    """

    def __init__(self) -> None:
        self.arms = {slot: ArmGrowth(0, 0, 0, 0, 0) for slot in ARMS}
        self._latest: dict[str, SlotFacts] = {}

    @property
    def restarts(self) -> dict[str, int]:
        return {slot: arm.restarts for slot, arm in self.arms.items()}

    def add(self, facts: Facts) -> dict[str, dict[str, int]]:
        """Add the growth since the last facts; return the growth of each slot's counters."""
        grown = {}
        for slot in ARMS:
            now: SlotFacts = getattr(facts, slot)
            grown[slot] = counter_growth(self._latest.get(slot, now), now)
            for name, more in grown[slot].items():
                setattr(self.arms[slot], name, getattr(self.arms[slot], name) + more)
        self.skip(facts)
        return grown

    def skip(self, facts: Facts) -> None:
        """Update the last facts without adding their growth."""
        self._latest = {slot: getattr(facts, slot) for slot in ARMS}

    def since_begin(self, facts: Facts, arms: dict[str, ArmCounts]) -> Facts:
        """Return the facts with the growth since `restart` and with these episode counts."""
        counted = {
            slot: replace(
                getattr(facts, slot), **counters(self.arms[slot]), arm=replace(arms[slot])
            )
            for slot in ARMS
        }
        return replace(facts, **counted)

    def restart(self, arms: Sequence[str] = ARMS) -> None:
        """Reset the growth of these arms to 0."""
        for slot in arms:
            restarts = self.arms[slot].restarts + 1
            self.arms[slot] = ArmGrowth(0, 0, 0, 0, 0, restarts=restarts)


def counters(slot: SlotFacts | Counters) -> dict[str, int]:
    """Return the counters of a slot."""
    return {name: getattr(slot, name) for name in COUNTERS}


def counter_growth(before: SlotFacts, now: SlotFacts) -> dict[str, int]:
    """Return the growth of each counter; if one fell, all counters have restarted at 0."""
    old, new = counters(before), counters(now)
    has_restarted = any(new[name] < old[name] for name in COUNTERS)
    return {name: max(0, new[name] - (0 if has_restarted else old[name])) for name in COUNTERS}
