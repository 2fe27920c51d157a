# SPDX-License-Identifier: Apache-2.0
"""
Robots of the candidate that halt: the safety cage latched, or the stop service was called.

A robot that halts sends no commands and no requests until a person acts, so that no share of
replies or commands shows it: the fewer robots are left, the less is counted. It reports the halt
with one last request. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lerobot_serve.router.canary.facts import Facts, SlotFacts
from lerobot_serve.router.canary.plan import allowed_percent
from lerobot_serve.router.parameters import RouterParameters


class HaltVerdict(Enum):
    """What the halts mean for the canary."""

    # nothing to report
    PASS = 'pass'
    # a person must look; the canary continues
    REPORT = 'report'
    ROLL_BACK = 'roll_back'


@dataclass(frozen=True, slots=True)
class HaltShares:
    """The halts of a step as shares of the episodes of each arm [%], and the limit now."""

    count: int
    episodes: int
    candidate_percent: float
    champion_percent: float
    limit_percent: float


def halt_shares(facts: Facts, limits: RouterParameters) -> HaltShares:
    """Return the shares in the facts of a step."""
    champion = _percent(facts.champion)
    limit = limits.canary_max_halted_percent
    return HaltShares(
        facts.candidate.halts,
        facts.candidate.arm.begun,
        _percent(facts.candidate),
        champion,
        limit and allowed_percent(limit, champion),
    )


def halt_verdict(shares: HaltShares, limits: RouterParameters) -> HaltVerdict:
    """Return what the halts mean; one robot may halt for a reason of its own."""
    if not shares.count:
        return HaltVerdict.PASS
    is_enough = shares.count >= limits.canary_minimum_halts
    is_above = shares.candidate_percent > shares.limit_percent
    trips = limits.canary_max_halted_percent and is_enough and is_above
    return HaltVerdict.ROLL_BACK if trips else HaltVerdict.REPORT


def halt_text(facts: Facts, limits: RouterParameters, verdict: HaltVerdict) -> str:
    """Return the halts in words if this is the verdict; empty otherwise."""
    shares = halt_shares(facts, limits)
    if halt_verdict(shares, limits) is not verdict:
        return ''
    if verdict is HaltVerdict.ROLL_BACK:
        return (
            f'robots halted {shares.count} times in {shares.episodes} episodes of the candidate '
            f'(cage latched or stop service called): {shares.candidate_percent:.0f} %, limit '
            f'{shares.limit_percent:.0f} % (champion {shares.champion_percent:.0f} %)'
        )
    times = 'once' if shares.count == 1 else f'{shares.count} times'
    return (
        f'a robot of the candidate halted {times} (cage latched or stop service called) and waits '
        'for a person; `lerobot-serve robots` names it'
    )


def _percent(slot: SlotFacts) -> float:
    # an episode that began before the step may halt in it
    episodes = max(slot.arm.begun, slot.halts)
    return 100 * slot.halts / episodes if episodes else 0.0
