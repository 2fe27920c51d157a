# SPDX-License-Identifier: Apache-2.0
"""
What only the world knows: the true success rate of each version, which no part of the loop can
see, and how it is drawn. Plain; one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
import random

from lerobot_serve.contract.fingerprint import digest_of

FIRST_RATE, BETTER, BEST, WORSE_BY, FALLEN = 0.8, 0.07, 0.97, 0.4, 0.1


class Fate(Enum):
    """What a version is when robots meet it."""

    BETTER = 'better'
    EQUAL = 'equal'
    # as its parent on trial, and far worse once it has all episodes
    FALLS = 'falls'
    WORSE = 'worse'


# each night has them in this order, at each version that begins to drive
FATES: Sequence[Fate] = (Fate.BETTER, Fate.FALLS, Fate.WORSE, Fate.BETTER, Fate.EQUAL)


class World:
    """See the module. `poisons` is how many more versions are trained on shifted labels."""

    def __init__(self, champion: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self._rates = {digest_of(champion): FIRST_RATE}
        self.fates: dict[str, Fate] = {}
        self._left = list(FATES)
        self.poisoned: set[str] = set()
        self.is_poisoned = False

    def meet(self, policy: str, champion: str) -> None:
        """Draw the fate of a version that begins to drive beside a champion."""
        digest = digest_of(policy)
        if digest in self._rates:
            return
        fate = self._left.pop(0) if self._left else self.chance.choice(FATES)
        self.fates[digest] = fate
        rate = self.rate(champion)
        if fate in (Fate.BETTER, Fate.FALLS):
            rate = min(BEST, rate + BETTER)
        elif fate is Fate.WORSE:
            rate -= WORSE_BY
        self._rates[digest] = rate

    def promote(self, policy: str) -> None:
        """A version has all episodes from now on."""
        if self.fates.get(digest_of(policy)) is Fate.FALLS:
            self._rates[digest_of(policy)] = FALLEN

    def rate(self, policy: str) -> float:
        return self._rates[digest_of(policy)]

    def outcome(self, policy: str) -> int:
        """Draw how an episode ends that a policy drove: SUCCESS or FAILURE."""
        return 1 if self.chance.random() < self.rate(policy) else 2
