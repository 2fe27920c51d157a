# SPDX-License-Identifier: Apache-2.0
"""
The watch after a promotion: guards and the success rate go on against the warm champion. Pure.

The candidate has all new episodes then, and the champion's servers still run: as long as they do,
a candidate that turns out worse can be rolled back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.router.canary.evidence.success_rate import worse_evidence
from lerobot_serve.router.canary.facts import ArmCounts, Facts, SlotFacts
from lerobot_serve.router.parameters import RouterParameters

HOUR_NS = 3600 * 10**9


class Champion(Enum):
    """What slot a is, compared with the promotion."""

    # it serves the champion: it can take over
    WARM = 'warm'
    # not healthy, or its policy is not known
    COLD = 'cold'
    # it serves another policy than at the promotion
    REPLACED = 'replaced'


class WatchFinding(Enum):
    """What is found about the candidate since the promotion."""

    NONE = 'none'
    # a guard tripped
    GUARD = 'guard'
    # it succeeds less often than the champion did
    WORSE = 'worse'


class WatchAction(Enum):
    """What the canary does."""

    WATCH = 'watch'
    # a reason to roll back, and no champion to go back to: the candidate continues
    KEEP = 'keep'
    ROLL_BACK = 'roll_back'
    # minimum episodes and time are reached, and nothing is found
    PASS = 'pass'


def watch_action(champion: Champion, finding: WatchFinding, *, is_complete: bool) -> WatchAction:
    """Return what the canary does; `is_complete`: minimum episodes and time are reached."""
    if finding is not WatchFinding.NONE:
        # it does not expire: the champion takes over as soon as it is back
        return WatchAction.ROLL_BACK if champion is Champion.WARM else WatchAction.KEEP
    # a server that starts again serves the policy of its parameter until the champion is put back:
    # that ends no watch, and passes none
    may_pass = is_complete and champion is not Champion.REPLACED
    return WatchAction.PASS if may_pass else WatchAction.WATCH


@dataclass(slots=True)
class WatchRecord:
    """The state of a watch that survives a restart. Owned by the executor thread."""

    # fingerprint at the promotion; empty: nothing is watched
    champion: str = ''
    is_over: bool = False
    # episodes of the champion in all steps before the last one
    earlier: ArmCounts = field(default_factory=ArmCounts)
    # a guard that tripped while there was no champion to go back to
    tripped: str = ''

    @property
    def is_on(self) -> bool:
        return bool(self.champion) and not self.is_over

    def champion_state(self, slot: SlotFacts) -> Champion:
        """Return what slot a is now."""
        if slot.policy and digest_of(slot.policy) != digest_of(self.champion):
            return Champion.REPLACED
        return Champion.WARM if slot.healthy and slot.policy else Champion.COLD

    def champion_counts(self, since: ArmCounts) -> tuple[int, int]:
        """
        Return the successes and failures of the champion; `since` are its episodes since the last
        step began. An unknown end counts as a failure.
        """
        successes = self.earlier.success + since.success
        return successes, self.earlier.begun + since.begun - successes

    def evidence(
        self, candidate: ArmCounts, champion: ArmCounts, rules: RouterParameters
    ) -> float:
        """Return the log e that the candidate is worse than the champion by the margin."""
        # one outage moves many episodes at once, which says nothing about the policy
        failures = candidate.failure + candidate.aborted
        return worse_evidence(
            self.champion_counts(champion),
            (candidate.begun - failures, failures),
            rules.canary_margin,
        )


def ended(arm: ArmCounts) -> int:
    """Return the number of episodes whose end is known."""
    return arm.success + arm.failure + arm.aborted


def is_complete(candidate: ArmCounts, time_ns: int, minimum: RouterParameters) -> bool:
    """Return whether the watch has its minimum episodes and its minimum time."""
    return (
        ended(candidate) >= minimum.canary_watch_episodes
        and time_ns >= minimum.canary_watch_hours * HOUR_NS
    )


def without_earlier_halts(facts: Facts) -> Facts:
    """
    Return the facts without halts beyond the episodes, which are of episodes from before; one
    stays to be reported.
    """
    candidate = facts.candidate
    halts = min(candidate.halts, max(candidate.arm.begun, 1))
    return replace(facts, candidate=replace(candidate, halts=halts))
