# SPDX-License-Identifier: Apache-2.0
"""
Decide which slot may serve which request: one table for every use. Pure.

A row is a use, a column a condition of the slot. `no` refuses, `last` allows the slot as a last
resort, a dot ignores the condition:

              BARRED       DRAINED              UNQUALIFIED    NOT_OFFERED     UNREACHABLE
                    LEAVING       INCOMPATIBLE        NO_SHARE        UNHEALTHY
    PLACE     no    .      no     no            no    no       .      last     no
    TAKE_OVER no    .      no     no            no    .        no     last     no
    MOVE_IN   no    .      no     no            no    .        no     no       no
    STAY      .     no     .      no            .     .        .      last     no
    FAIL_OVER .     no     .      no            .     .        .      last     no
    HEDGE     .     no     .      no            .     .        .      .        no
    PROBE     .     .      .      .             .     .        .      .        no
    GET_SHARE no    .      no     no            no    .        .      no       no

Streamed requests, RunEpisode (which streams) and PredictChunk use the same rows, so that a barred
policy receives no episode by any of them. Its running episodes leave at their end, or when the
slot is LEAVING.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto, Enum, IntEnum
from typing import NamedTuple


class SlotUse(Enum):
    """The use of a slot; a row of the table."""

    # a new episode that the split assigns to this slot
    PLACE = auto()
    # a new episode that the split assigns to another slot
    TAKE_OVER = auto()
    # the next request of an episode that runs in this slot
    STAY = auto()
    # a running episode that leaves another slot
    MOVE_IN = auto()
    # another replica of this slot after a failure or a late reply
    FAIL_OVER = auto()
    # a second copy of a request
    HEDGE = auto()
    # a copy of a request; its reply is discarded
    PROBE = auto()
    # a share of new episodes, set by the canary or an operator
    GET_SHARE = auto()


class PolicyVerdict(Enum):
    """The verdict on the policy of a slot."""

    NONE = 'none'
    ON_TRIAL = 'on_trial'
    PROMOTED = 'promoted'
    ROLLED_BACK = 'rolled_back'
    # unknown: the state store is damaged
    DAMAGED = 'damaged'


BARRING_VERDICTS = (PolicyVerdict.ROLLED_BACK, PolicyVerdict.DAMAGED)


class Reachability(Enum):
    """Whether the replicas of a slot can serve."""

    HEALTHY = auto()
    # unhealthy, with a replica that can be reached
    UNHEALTHY = auto()
    # without a replica that can be reached
    UNREACHABLE = auto()


class Eligibility(IntEnum):
    """Larger is better."""

    NO = 0
    # eligible while no slot is healthier
    LAST_RESORT = 1
    YES = 2


class EligibilityResult(NamedTuple):
    """`reason` is why the grade is not YES; empty for YES."""

    grade: Eligibility
    reason: str = ''


@dataclass(frozen=True, slots=True)
class SlotConditions:
    """
    The conditions of a slot at one moment.

    leaving         running episodes leave now instead of at their end
    takes_failover  the slot takes over from the other slot
    verdict_text, drained, unmet_requirements, incompatibility, unreachable
                    reasons; the last four are empty if the condition does not hold
    """

    verdict: PolicyVerdict = PolicyVerdict.NONE
    has_share: bool = True
    reach: Reachability = Reachability.HEALTHY
    takes_failover: bool = False
    leaving: bool = False
    verdict_text: str = ''
    drained: str = ''
    unmet_requirements: str = ''
    incompatibility: str = ''
    unreachable: str = ''


class ObstacleKind(Enum):
    """A column of the table."""

    BARRED = auto()
    LEAVING = auto()
    DRAINED = auto()
    INCOMPATIBLE = auto()
    UNQUALIFIED = auto()
    NO_SHARE = auto()
    NOT_OFFERED = auto()
    UNHEALTHY = auto()
    UNREACHABLE = auto()


_NEW_EPISODE = {
    ObstacleKind.BARRED,
    ObstacleKind.DRAINED,
    ObstacleKind.INCOMPATIBLE,
    ObstacleKind.UNQUALIFIED,
    ObstacleKind.UNREACHABLE,
}
_RUNNING_EPISODE = {ObstacleKind.LEAVING, ObstacleKind.INCOMPATIBLE, ObstacleKind.UNREACHABLE}
REFUSING_OBSTACLES: dict[SlotUse, frozenset[ObstacleKind]] = {
    SlotUse.PLACE: frozenset(_NEW_EPISODE | {ObstacleKind.NO_SHARE}),
    SlotUse.TAKE_OVER: frozenset(_NEW_EPISODE | {ObstacleKind.NOT_OFFERED}),
    SlotUse.MOVE_IN: frozenset(_NEW_EPISODE | {ObstacleKind.NOT_OFFERED, ObstacleKind.UNHEALTHY}),
    SlotUse.STAY: frozenset(_RUNNING_EPISODE),
    SlotUse.FAIL_OVER: frozenset(_RUNNING_EPISODE),
    SlotUse.HEDGE: frozenset(_RUNNING_EPISODE),
    SlotUse.PROBE: frozenset({ObstacleKind.UNREACHABLE}),
    SlotUse.GET_SHARE: frozenset(_NEW_EPISODE | {ObstacleKind.UNHEALTHY}),
}
LAST_RESORT_USES = (SlotUse.PLACE, SlotUse.TAKE_OVER, SlotUse.STAY, SlotUse.FAIL_OVER)
ELIGIBLE = EligibilityResult(Eligibility.YES)


def check_eligibility(use: SlotUse, slot: SlotConditions) -> EligibilityResult:
    """Return the eligibility of a slot for a use, and its reason."""
    refused, last_resort = REFUSING_OBSTACLES[use], ''
    for obstacle, reason in _obstacles(slot):
        if obstacle in refused:
            return EligibilityResult(Eligibility.NO, reason)
        if obstacle is ObstacleKind.UNHEALTHY and use in LAST_RESORT_USES:
            last_resort = reason
    return EligibilityResult(Eligibility.LAST_RESORT, last_resort) if last_resort else ELIGIBLE


def _obstacles(slot: SlotConditions) -> list[tuple[ObstacleKind, str]]:
    """Return the obstacles with their reasons, the gravest first."""
    found = []
    if slot.verdict in BARRING_VERDICTS:
        found.append((ObstacleKind.BARRED, slot.verdict_text or slot.verdict.value))
    if slot.leaving or slot.verdict is PolicyVerdict.DAMAGED:
        text = slot.verdict_text if slot.verdict in BARRING_VERDICTS else slot.drained
        text = text or slot.unmet_requirements
        found.append((ObstacleKind.LEAVING, f'running episodes leave it: {text}'))
    for obstacle, text in (
        (ObstacleKind.DRAINED, slot.drained),
        (ObstacleKind.INCOMPATIBLE, slot.incompatibility),
        (ObstacleKind.UNQUALIFIED, slot.unmet_requirements),
    ):
        if text:
            found.append((obstacle, text))
    if slot.reach is not Reachability.HEALTHY:
        obstacle = (
            ObstacleKind.UNHEALTHY
            if slot.reach is Reachability.UNHEALTHY
            else ObstacleKind.UNREACHABLE
        )
        found.append((obstacle, slot.unreachable or 'unreachable'))
    if not slot.has_share:
        found.append((ObstacleKind.NO_SHARE, 'share is 0'))
    if not slot.takes_failover and not slot.has_share:
        found.append(
            (ObstacleKind.NOT_OFFERED, 'share is 0 and `failover_slots` does not include it')
        )
    elif not slot.takes_failover and slot.verdict is PolicyVerdict.ON_TRIAL:
        found.append(
            (
                ObstacleKind.NOT_OFFERED,
                'policy is on trial and `failover_slots` does not include it',
            )
        )
    return found


def effective_shares(
    configured: dict[str, int], slots: dict[str, SlotConditions]
) -> dict[str, int]:
    """Return the effective share of new episodes [%] of each slot."""
    found = dict.fromkeys(slots, 0)
    for name, percent in configured.items():
        receiver = choose_slot(name, slots).slot
        if receiver:
            found[receiver] += percent
    return found


class SlotChoice(NamedTuple):
    """The slot of a new episode, empty for none, and why it is not the slot of the split."""

    slot: str
    reason: str = ''


def choose_slot(wanted: str, slots: dict[str, SlotConditions]) -> SlotChoice:
    """Return the slot of a new episode that the split assigns to `wanted`."""
    own = check_eligibility(SlotUse.PLACE, slots[wanted])
    if own.grade is Eligibility.YES:
        return SlotChoice(wanted)
    others = {n: check_eligibility(SlotUse.TAKE_OVER, slots[n]) for n in slots if n != wanted}
    for name, result in others.items():
        if result.grade is Eligibility.YES:
            return SlotChoice(name, f'slot {wanted} takes no episodes: {own.reason}')
    if own.grade is Eligibility.LAST_RESORT:
        return SlotChoice(wanted, f'no slot is healthy; slot {wanted}: {own.reason}')
    for name, result in others.items():
        if result.grade is Eligibility.LAST_RESORT:
            return SlotChoice(name, f'slot {wanted} takes no episodes: {own.reason}')
    results = {wanted: own, **others}
    return SlotChoice('', '; '.join(f'slot {n}: {r.reason}' for n, r in results.items()))
