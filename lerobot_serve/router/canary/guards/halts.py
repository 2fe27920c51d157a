# SPDX-License-Identifier: Apache-2.0
"""
Robots of the candidate that halt: the safety cage latched, or the stop service was called.

A robot that halts sends no commands and no requests until a person acts, so that no share of
replies or commands shows it: the fewer robots are left, the less is counted. It reports the halt
with one last request. The guard is a table; pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lerobot_serve.router.canary.facts import Facts, SlotFacts
from lerobot_serve.router.canary.plan import GuardLimits

# factor on the champion's share, since both shares are noisy, and the most that it may add
CHAMPION_SHARE_FACTOR, CHAMPION_MARGIN_PERCENT = 2.0, 10.0


class HaltCount(Enum):
    """The number of halts of the candidate in a step, compared with the minimum."""

    NONE = 'none'
    FEW = 'few'
    ENOUGH = 'enough'


class HaltVerdict(Enum):
    """What the halts mean for the canary."""

    # nothing to report
    PASS = 'pass'
    # a person must look; the canary continues
    REPORT = 'report'
    ROLL_BACK = 'roll_back'


# whether the guard is on, number of halts, whether their share is above the limit -> verdict
HALT_VERDICTS: dict[tuple[bool, HaltCount, bool], HaltVerdict] = {
    (False, HaltCount.NONE, False): HaltVerdict.PASS,
    (False, HaltCount.NONE, True): HaltVerdict.PASS,
    (False, HaltCount.FEW, False): HaltVerdict.REPORT,
    (False, HaltCount.FEW, True): HaltVerdict.REPORT,
    (False, HaltCount.ENOUGH, False): HaltVerdict.REPORT,
    (False, HaltCount.ENOUGH, True): HaltVerdict.REPORT,
    (True, HaltCount.NONE, False): HaltVerdict.PASS,
    (True, HaltCount.NONE, True): HaltVerdict.PASS,
    # one robot may halt for a reason of its own
    (True, HaltCount.FEW, False): HaltVerdict.REPORT,
    (True, HaltCount.FEW, True): HaltVerdict.REPORT,
    (True, HaltCount.ENOUGH, False): HaltVerdict.REPORT,
    (True, HaltCount.ENOUGH, True): HaltVerdict.ROLL_BACK,
}


@dataclass(frozen=True, slots=True)
class HaltShares:
    """The halts of a step as shares of the episodes of each arm [%], and the limit now."""

    count: int
    episodes: int
    candidate_percent: float
    champion_percent: float
    limit_percent: float


def halt_shares(facts: Facts, limits: GuardLimits) -> HaltShares:
    """Return the shares in the facts of a step."""
    champion = _percent(facts.champion)
    limit = limits.halted_percent
    return HaltShares(
        facts.candidate.halts,
        facts.candidate.arm.begun,
        _percent(facts.candidate),
        champion,
        limit and allowed_percent(limit, champion),
    )


def allowed_percent(limit: float, champion: float) -> float:
    """Return the largest share of the candidate beside that of the champion [%]."""
    most = min(CHAMPION_SHARE_FACTOR * champion, champion + CHAMPION_MARGIN_PERCENT)
    return max(limit, min(most, 100.0))


def halt_verdict(shares: HaltShares, limits: GuardLimits) -> HaltVerdict:
    """Return the verdict of the table."""
    is_above = shares.candidate_percent > shares.limit_percent
    return HALT_VERDICTS[bool(limits.halted_percent), halt_count(shares, limits), is_above]


def halt_count(shares: HaltShares, limits: GuardLimits) -> HaltCount:
    """Return the number of halts as a column of the table."""
    if not shares.count:
        return HaltCount.NONE
    return HaltCount.ENOUGH if shares.count >= limits.minimum_halts else HaltCount.FEW


def halt_text(facts: Facts, limits: GuardLimits, verdict: HaltVerdict) -> str:
    """Return the halts in words if the table has this verdict; empty otherwise."""
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
