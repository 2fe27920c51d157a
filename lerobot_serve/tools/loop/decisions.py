# SPDX-License-Identifier: Apache-2.0
"""
The next step of the loop: one table of the rollout and of the candidate. Pure.

Each step is safe to repeat, so that a conductor that was killed continues with what it sees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.contract.records import CanaryState
from lerobot_serve.router.canary.gate_record import ADMITTED, GateRecord
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.operate.fleet_state import (
    CANDIDATE_SLOT,
    CHAMPION_SLOT,
    RouterView,
    waits_for_start,
)
from lerobot_serve.versions.manifest import Manifest

TOO_FEW = 'too_few'
TRIED_PHASES = frozenset(phase.word for phase in (*ON_TRIAL, CanaryPhase.PROMOTED))


class Rollout(Enum):
    """The rollout, as far as the loop is concerned."""

    # no router replies, or it serves no policy in slot a yet and none is promoted
    UNKNOWN = 'unknown'
    # none, or one that was rolled back
    IDLE = 'idle'
    # waiting, running, undecided or paused by an operator
    ON_TRIAL = 'on trial'
    # slot b serves another policy than the one of the plan, as after a restart of its server
    LOST = 'lost'
    # promoted, and rolled back by itself if it is worse after all
    WATCHED = 'watched'
    PROMOTED = 'promoted'


class Candidate(Enum):
    """The newest version that could replace the champion."""

    NONE = 'none'
    # without a gate record that holds for this champion
    UNGATED = 'ungated'
    ADMITTED = 'admitted'


class LoopStep(Enum):
    """What the loop does next."""

    WAIT = 'wait'
    GATE = 'gate'
    START = 'start'
    FINISH = 'finish'
    # the champion back into a server of slot a, which serves the policy of its start again
    RESTORE = 'restore'


# slot a is not in the midst of a change, which `rollout finish` is
SETTLED = frozenset({Rollout.IDLE, Rollout.ON_TRIAL, Rollout.LOST})
# a watch needs its champion to go back to; once it is over, `rollout finish` replaces it
RESTORING = SETTLED | {Rollout.WATCHED}
_TRIED = {
    Candidate.NONE: LoopStep.WAIT,
    Candidate.UNGATED: LoopStep.GATE,
    Candidate.ADMITTED: LoopStep.START,
}
STEPS: dict[Rollout, dict[Candidate, LoopStep]] = {
    Rollout.UNKNOWN: dict.fromkeys(Candidate, LoopStep.WAIT),
    Rollout.IDLE: _TRIED,
    # slot b has a candidate; the next one waits
    Rollout.ON_TRIAL: dict.fromkeys(Candidate, LoopStep.WAIT),
    # its evidence is lost, too: it begins again, or the one that is newer now
    Rollout.LOST: _TRIED,
    # a champion to go back to is worth more than the next candidate
    Rollout.WATCHED: dict.fromkeys(Candidate, LoopStep.WAIT),
    Rollout.PROMOTED: dict.fromkeys(Candidate, LoopStep.FINISH),
}


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """
    What a router says: the policies of its slots, and the phase and text of its rollout; `planned`
    is the policy of the plan, `servers` are those of slot a with their policies.
    """

    rollout: Rollout = Rollout.UNKNOWN
    phase: str = ''
    text: str = ''
    champion: str = ''
    candidate: str = ''
    planned: str = ''
    servers: tuple[tuple[str, str], ...] = ()

    @property
    def stage(self) -> tuple[Rollout, bool, str]:
        """What a person wants to know of a rollout; its steps and counts are in its history."""
        is_rolled_back = self.phase == CanaryPhase.ROLLED_BACK.word
        is_idle = self.rollout is Rollout.IDLE and not is_rolled_back
        return self.rollout, is_rolled_back, '' if is_idle else self.candidate


@dataclass(frozen=True, slots=True)
class Choice:
    """
    A candidate; `why_not` says of the newest version why it is none, and `stale` is that version
    if it was trained from another one than the champion.
    """

    candidate: Candidate = Candidate.NONE
    version: str = ''
    why_not: str = ''
    stale: str = ''


def rollout_facts(router: RouterView) -> RolloutFacts:
    """Return the facts in the state of a router."""
    champion, candidate = router.slot(CHAMPION_SLOT), router.slot(CANDIDATE_SLOT)
    canary = router.canary
    served = champion.policy if champion else ''
    rollout = _rollout(canary)
    if not served and rollout is not Rollout.PROMOTED:
        # an interrupted `rollout finish` may have left slot a without a policy: it continues
        rollout = Rollout.UNKNOWN
    return RolloutFacts(
        rollout,
        canary.state.word,
        canary.text,
        served,
        canary.candidate_policy or (candidate.policy if candidate else ''),
        canary.planned_policy,
        tuple((each.server, each.policy) for each in champion.replicas) if champion else (),
    )


def _rollout(canary: CanaryState) -> Rollout:
    phase = canary.state
    if phase in (CanaryPhase.OFF, CanaryPhase.ROLLED_BACK):
        return Rollout.IDLE
    if phase is CanaryPhase.PROMOTED:
        return Rollout.WATCHED if canary.is_watched else Rollout.PROMOTED
    if waits_for_start(canary):
        return Rollout.LOST
    is_trial = phase in (CanaryPhase.WAITING, *ON_TRIAL)
    return Rollout.ON_TRIAL if is_trial else Rollout.UNKNOWN


def own_rollout(facts: RolloutFacts, known: Collection[str]) -> Rollout:
    """
    Return the rollout; a lost candidate that a person had started is theirs to start again.
    `known` are the digests of all versions that the store ever had: a lost one may be deleted.
    """
    if facts.rollout is Rollout.LOST and digest_of(facts.planned) not in known:
        return Rollout.ON_TRIAL
    return facts.rollout


def is_tried(facts: RolloutFacts) -> bool:
    """Return whether the router gives the candidate episodes, which it gives to no barred one."""
    return bool(facts.candidate) and facts.phase in TRIED_PHASES


def is_one_of(versions: Iterable[Manifest], fingerprint: str) -> bool:
    """Return whether a policy is one of these versions."""
    return any(digest_of(each.id) == digest_of(fingerprint) for each in versions)


def server_to_restore(facts: RolloutFacts, start_policy: str, champion: str) -> str:
    """
    Return a server of slot a that serves the policy of its start instead of the `champion`, which
    was finished before; empty for none. Only a restart does that: a person who puts another policy
    there names one.
    """
    if not start_policy or not champion or digest_of(champion) == digest_of(start_policy):
        return ''
    return next(
        (
            server
            for server, policy in facts.servers
            if digest_of(policy) == digest_of(start_policy)
        ),
        '',
    )


def choose(
    versions: Iterable[Manifest],
    champion: str,
    records: Mapping[str, GateRecord],
    passed_over: Collection[str],
) -> Choice:
    """
    Return the newest version that was trained from the champion and that nothing speaks against;
    none while the champion is not known (empty). `versions` are in the order of their publication,
    `records` and `passed_over` by digest.
    """
    if not champion:
        return Choice()
    none = Choice()
    for version in reversed(list(versions)):
        found = _judge(version, champion, records, passed_over)
        if not found.why_not:
            return found
        none = none if none.why_not else found
    return none


def _judge(
    version: Manifest,
    champion: str,
    records: Mapping[str, GateRecord],
    passed_over: Collection[str],
) -> Choice:
    """Return a version as the candidate, or why it is none."""
    digest = digest_of(version.id)

    def none(reason: str, *, is_stale: bool = False) -> Choice:
        return Choice(why_not=f'{version.id}: {reason}', stale=version.id if is_stale else '')

    if digest == digest_of(champion):
        return none('is the champion')
    if digest in passed_over:
        return none('was rolled back')
    if digest_of(version.parent) != digest_of(champion):
        return none(
            f'was trained from {version.parent or "nothing"}, and not from {champion}: the next '
            'round may build on it; to try this one all the same: `lerobot-serve rollout start`',
            is_stale=True,
        )
    record = records.get(digest)
    if record is None or digest_of(record.parent) != digest_of(champion):
        return Choice(Candidate.UNGATED, version.id)
    if record.verdict in ADMITTED:
        return Choice(Candidate.ADMITTED, version.id)
    if record.verdict == TOO_FEW:
        return Choice(Candidate.UNGATED, version.id)
    return none(f'its gate: {record.verdict}: {record.text}')
