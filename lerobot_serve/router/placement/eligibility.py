# SPDX-License-Identifier: Apache-2.0
"""
Decide which slot may serve which request: one table for every use. Pure.

A row is a use, a column a condition of the slot. `no` refuses, `need` allows where no slot is in
better health, a dot means that the condition does not matter:

              BARRED LEAVING DRAINED MISFIT UNQUALIFIED NO_SHARE NOT_OFFERED SUSPECT ABSENT
    PLACE     no     .       no      no     no          no       .           need    no
    TAKE_OVER no     .       no      no     no          .        no          need    no
    MOVE_IN   no     .       no      no     no          .        no          no      no
    STAY      .      no      .       no     .           .        .           need    no
    FAIL_OVER .      no      .       no     .           .        .           need    no
    HEDGE     .      no      .       no     .           .        .           .       no
    PROBE     .      .       .       .      .           .        .           .       no
    GET_SHARE no     .       no      no     no          .        .           no      no

Requests of a stream, of RunEpisode (which streams) and of PredictChunk take the same paths. So a
policy that a verdict bars gets no robot by any of them; what runs with it leaves at its end, or
at the time at which the slot is LEAVING.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto, Enum, IntEnum
from typing import NamedTuple


class SlotUse(Enum):
    """What a slot is used for."""

    # a new episode, where the split puts it
    PLACE = auto()
    # a new episode that the split puts into another slot
    TAKE_OVER = auto()
    # the next request of an episode that runs here
    STAY = auto()
    # a running episode that leaves another slot
    MOVE_IN = auto()
    # another replica of this slot, after a failure or a late reply
    FAIL_OVER = auto()
    HEDGE = auto()
    # a copy of a request; its reply is discarded
    PROBE = auto()
    # a share of new episodes, given by the canary or an operator
    GET_SHARE = auto()


class PolicyVerdict(Enum):
    """The verdict on the policy of a slot."""

    NONE = 'none'
    ON_TRIAL = 'on_trial'
    PROMOTED = 'promoted'
    ROLLED_BACK = 'rolled_back'
    # unknown: the state store was damaged
    DAMAGED = 'damaged'


BARRING_VERDICTS = (PolicyVerdict.ROLLED_BACK, PolicyVerdict.DAMAGED)


class Reachability(Enum):
    """Whether a slot has replicas that can serve."""

    HEALTHY = auto()
    # unhealthy; a replica can be reached
    SUSPECT = auto()
    # no replica can be reached
    ABSENT = auto()


class Eligibility(IntEnum):
    """Larger is better."""

    NO = 0
    # where no slot is in better health
    IN_NEED = 1
    YES = 2


class EligibilityResult(NamedTuple):
    """`reason` says why it is not YES; empty when it is."""

    grade: Eligibility
    reason: str = ''


@dataclass(frozen=True, slots=True)
class SlotConditions:
    """
    A slot at one moment.

    leaving      running episodes leave now instead of at their end
    takes_failover may take over from the other slot
    verdict_text, drained, unmet_requirements, misfit, unreachable
                 reasons; the last four are empty where the condition does not hold
    """

    verdict: PolicyVerdict = PolicyVerdict.NONE
    has_share: bool = True
    reach: Reachability = Reachability.HEALTHY
    takes_failover: bool = False
    leaving: bool = False
    verdict_text: str = ''
    drained: str = ''
    unmet_requirements: str = ''
    misfit: str = ''
    unreachable: str = ''


class ObstacleKind(Enum):
    """A column of the table."""

    BARRED = auto()
    LEAVING = auto()
    DRAINED = auto()
    MISFIT = auto()
    UNQUALIFIED = auto()
    NO_SHARE = auto()
    NOT_OFFERED = auto()
    SUSPECT = auto()
    ABSENT = auto()


_NEW = {
    ObstacleKind.BARRED,
    ObstacleKind.DRAINED,
    ObstacleKind.MISFIT,
    ObstacleKind.UNQUALIFIED,
    ObstacleKind.ABSENT,
}
_RUNNING = {ObstacleKind.LEAVING, ObstacleKind.MISFIT, ObstacleKind.ABSENT}
REFUSING_OBSTACLES: dict[SlotUse, frozenset[ObstacleKind]] = {
    SlotUse.PLACE: frozenset(_NEW | {ObstacleKind.NO_SHARE}),
    SlotUse.TAKE_OVER: frozenset(_NEW | {ObstacleKind.NOT_OFFERED}),
    SlotUse.MOVE_IN: frozenset(_NEW | {ObstacleKind.NOT_OFFERED, ObstacleKind.SUSPECT}),
    SlotUse.STAY: frozenset(_RUNNING),
    SlotUse.FAIL_OVER: frozenset(_RUNNING),
    SlotUse.HEDGE: frozenset(_RUNNING),
    SlotUse.PROBE: frozenset({ObstacleKind.ABSENT}),
    SlotUse.GET_SHARE: frozenset(_NEW | {ObstacleKind.SUSPECT}),
}
USES_ALLOWED_IN_NEED = (SlotUse.PLACE, SlotUse.TAKE_OVER, SlotUse.STAY, SlotUse.FAIL_OVER)
ELIGIBLE = EligibilityResult(Eligibility.YES)


def check_eligibility(path: SlotUse, slot: SlotConditions) -> EligibilityResult:
    """Return the eligibility of a slot for a use, and its reason."""
    refused, doubt = REFUSING_OBSTACLES[path], ''
    for cause, reason in _causes(slot):
        if cause in refused:
            return EligibilityResult(Eligibility.NO, reason)
        if cause is ObstacleKind.SUSPECT and path in USES_ALLOWED_IN_NEED:
            doubt = reason
    return EligibilityResult(Eligibility.IN_NEED, doubt) if doubt else ELIGIBLE


def _causes(slot: SlotConditions) -> list[tuple[ObstacleKind, str]]:
    """Return the conditions that hold, each with its text, the gravest first."""
    found = []
    if slot.verdict in BARRING_VERDICTS:
        found.append((ObstacleKind.BARRED, slot.verdict_text or slot.verdict.value))
    if slot.leaving or slot.verdict is PolicyVerdict.DAMAGED:
        text = slot.verdict_text if slot.verdict in BARRING_VERDICTS else slot.drained
        found.append((ObstacleKind.LEAVING, f'running episodes leave it: {text}'))
    for cause, text in (
        (ObstacleKind.DRAINED, slot.drained),
        (ObstacleKind.MISFIT, slot.misfit),
        (ObstacleKind.UNQUALIFIED, slot.unmet_requirements),
    ):
        if text:
            found.append((cause, text))
    if slot.reach is not Reachability.HEALTHY:
        cause = ObstacleKind.SUSPECT if slot.reach is Reachability.SUSPECT else ObstacleKind.ABSENT
        found.append((cause, slot.unreachable or 'unreachable'))
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


def effective_shares(meant: dict[str, int], slots: dict[str, SlotConditions]) -> dict[str, int]:
    """Return the share of new episodes [%] that each slot gets; `meant` is what the split says."""
    found = dict.fromkeys(slots, 0)
    for name, percent in meant.items():
        taker = choose_slot(name, slots).slot
        if taker:
            found[taker] += percent
    return found


class SlotChoice(NamedTuple):
    """The slot of a new episode and why it is not that of the split; empty slot: none."""

    slot: str
    reason: str = ''


def choose_slot(wanted: str, slots: dict[str, SlotConditions]) -> SlotChoice:
    """Return where an episode begins that the split puts into `wanted`."""
    own = check_eligibility(SlotUse.PLACE, slots[wanted])
    if own.grade is Eligibility.YES:
        return SlotChoice(wanted)
    others = {n: check_eligibility(SlotUse.TAKE_OVER, slots[n]) for n in slots if n != wanted}
    for name, answer in others.items():
        if answer.grade is Eligibility.YES:
            return SlotChoice(name, f'slot {wanted} takes no episodes: {own.reason}')
    if own.grade is Eligibility.IN_NEED:
        return SlotChoice(wanted, f'no slot is healthy; slot {wanted}: {own.reason}')
    for name, answer in others.items():
        if answer.grade is Eligibility.IN_NEED:
            return SlotChoice(name, f'slot {wanted} takes no episodes: {own.reason}')
    answers = {wanted: own, **others}
    return SlotChoice('', '; '.join(f'slot {n}: {a.reason}' for n, a in answers.items()))
