"""
Which slot may answer which request: one table that every path asks. Pure.

A row is a path, a column a condition of the slot. `no` refuses, `need` allows where no slot is in
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


class Path(Enum):
    """What a slot is wanted for."""

    # a new episode, where the split puts it
    PLACE = auto()
    # a new episode that the split puts into another slot
    TAKE_OVER = auto()
    # the next request of an episode that runs here
    STAY = auto()
    # a running episode, or one request of it, that another slot cannot answer
    MOVE_IN = auto()
    # another replica for a request that one of this slot failed, or is late with
    FAIL_OVER = auto()
    HEDGE = auto()
    # a copy of a request; its answer reaches no robot
    PROBE = auto()
    # a share of new episodes, given by the canary or an operator
    GET_SHARE = auto()


class Verdict(Enum):
    """What is decided about the policy of a slot."""

    NONE = 'none'
    ON_TRIAL = 'on_trial'
    PROMOTED = 'promoted'
    ROLLED_BACK = 'rolled_back'
    # the store cannot say: it was damaged
    DAMAGED = 'damaged'


BARRING = (Verdict.ROLLED_BACK, Verdict.DAMAGED)


class Reach(Enum):
    """How a slot answers."""

    HEALTHY = auto()
    # failed lately; a replica can be asked
    SUSPECT = auto()
    # no replica can be asked
    ABSENT = auto()


class Grade(IntEnum):
    """Larger is better."""

    NO = 0
    # where no slot is in better health
    IN_NEED = 1
    YES = 2


class Answer(NamedTuple):
    """`reason` says why it is not YES; empty when it is."""

    grade: Grade
    reason: str = ''


@dataclass(frozen=True, slots=True)
class Conditions:
    """
    A slot at one moment.

    leaving      running episodes leave now, rather than at their end
    spare        declared to take over from the other slot
    verdict_text, drained, unqualified, misfit, unreachable
                 why, in words; the last four are empty where it is not so
    """

    verdict: Verdict = Verdict.NONE
    has_share: bool = True
    reach: Reach = Reach.HEALTHY
    spare: bool = False
    leaving: bool = False
    verdict_text: str = ''
    drained: str = ''
    unqualified: str = ''
    misfit: str = ''
    unreachable: str = ''


class Cause(Enum):
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


_NEW = {Cause.BARRED, Cause.DRAINED, Cause.MISFIT, Cause.UNQUALIFIED, Cause.ABSENT}
_RUNNING = {Cause.LEAVING, Cause.MISFIT, Cause.ABSENT}
REFUSED: dict[Path, frozenset[Cause]] = {
    Path.PLACE: frozenset(_NEW | {Cause.NO_SHARE}),
    Path.TAKE_OVER: frozenset(_NEW | {Cause.NOT_OFFERED}),
    Path.MOVE_IN: frozenset(_NEW | {Cause.NOT_OFFERED, Cause.SUSPECT}),
    Path.STAY: frozenset(_RUNNING),
    Path.FAIL_OVER: frozenset(_RUNNING),
    Path.HEDGE: frozenset(_RUNNING),
    Path.PROBE: frozenset({Cause.ABSENT}),
    Path.GET_SHARE: frozenset(_NEW | {Cause.SUSPECT}),
}
IN_NEED = (Path.PLACE, Path.TAKE_OVER, Path.STAY, Path.FAIL_OVER)
YES = Answer(Grade.YES)


def judge(path: Path, slot: Conditions) -> Answer:
    """Return whether a slot may be used for it, and why not."""
    refused, doubt = REFUSED[path], ''
    for cause, reason in _causes(slot):
        if cause in refused:
            return Answer(Grade.NO, reason)
        if cause is Cause.SUSPECT and path in IN_NEED:
            doubt = reason
    return Answer(Grade.IN_NEED, doubt) if doubt else YES


def _causes(slot: Conditions) -> list[tuple[Cause, str]]:
    """Return the conditions that hold, each with its text, the gravest first."""
    found = []
    if slot.verdict in BARRING:
        found.append((Cause.BARRED, slot.verdict_text or slot.verdict.value))
    if slot.leaving or slot.verdict is Verdict.DAMAGED:
        text = slot.verdict_text if slot.verdict in BARRING else slot.drained
        found.append((Cause.LEAVING, f'running episodes leave it: {text}'))
    for cause, text in (
        (Cause.DRAINED, slot.drained),
        (Cause.MISFIT, slot.misfit),
        (Cause.UNQUALIFIED, slot.unqualified),
    ):
        if text:
            found.append((cause, text))
    if slot.reach is not Reach.HEALTHY:
        cause = Cause.SUSPECT if slot.reach is Reach.SUSPECT else Cause.ABSENT
        found.append((cause, slot.unreachable or 'it cannot be reached'))
    if not slot.has_share:
        found.append((Cause.NO_SHARE, 'its share of the episodes is 0'))
    if not slot.spare and not slot.has_share:
        found.append((Cause.NOT_OFFERED, 'its share is 0 and `spare` does not name it'))
    elif not slot.spare and slot.verdict is Verdict.ON_TRIAL:
        found.append((Cause.NOT_OFFERED, 'its policy is on trial and `spare` does not name it'))
    return found


def real_shares(meant: dict[str, int], slots: dict[str, Conditions]) -> dict[str, int]:
    """Return the share of new episodes [%] that each slot gets; `meant` is what the split says."""
    found = dict.fromkeys(slots, 0)
    for name, percent in meant.items():
        taker = new_episode(name, slots).slot
        if taker:
            found[taker] += percent
    return found


class Choice(NamedTuple):
    """The slot of a new episode, and why it is not the one of the split; no slot: why none."""

    slot: str
    reason: str = ''


def new_episode(wanted: str, slots: dict[str, Conditions]) -> Choice:
    """Return where an episode begins that the split puts into `wanted`."""
    own = judge(Path.PLACE, slots[wanted])
    if own.grade is Grade.YES:
        return Choice(wanted)
    others = {n: judge(Path.TAKE_OVER, slots[n]) for n in slots if n != wanted}
    for name, answer in others.items():
        if answer.grade is Grade.YES:
            return Choice(name, f'slot {wanted} takes no episodes: {own.reason}')
    if own.grade is Grade.IN_NEED:
        return Choice(wanted, f'no slot is healthy; slot {wanted}: {own.reason}')
    for name, answer in others.items():
        if answer.grade is Grade.IN_NEED:
            return Choice(name, f'slot {wanted} takes no episodes: {own.reason}')
    answers = {wanted: own, **others}
    return Choice('', '; '.join(f'slot {n}: {a.reason}' for n, a in answers.items()))
