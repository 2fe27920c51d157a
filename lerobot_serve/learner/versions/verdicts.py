# SPDX-License-Identifier: Apache-2.0
"""What the state of a canary says of the candidate: one table. Pure; any thread."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

ROLLED_BACK, PROMOTED = 'ROLLED_BACK', 'PROMOTED'
STATES = ('OFF', 'WAITING', 'RUNNING', 'UNDECIDED', 'PAUSED', PROMOTED, ROLLED_BACK)


class Verdict(Enum):
    """What a state means for a policy."""

    NONE = 'none'
    # no round builds on it
    REJECTED = 'rejected'
    # only a person makes a rolled-back policy a candidate again: it stood the test then
    ACCEPTED = 'accepted'


VERDICTS: dict[str, Verdict] = {
    'OFF': Verdict.NONE,
    'WAITING': Verdict.NONE,
    'RUNNING': Verdict.NONE,
    'UNDECIDED': Verdict.NONE,
    'PAUSED': Verdict.NONE,
    PROMOTED: Verdict.ACCEPTED,
    ROLLED_BACK: Verdict.REJECTED,
}


class CanaryNews(NamedTuple):
    """
    A verdict on a policy, by its fingerprint, with the reason; `champion` is the policy of slot a,
    empty if it is not known.
    """

    verdict: Verdict
    policy: str
    text: str
    champion: str = ''


def canary_news(
    state: str, planned: str, candidate: str, text: str, champion: str = ''
) -> CanaryNews | None:
    """
    Return the verdict of a canary state and the champion; None for neither. An unknown state has
    no verdict.
    """
    policy = planned or candidate
    verdict = VERDICTS.get(state, Verdict.NONE) if policy else Verdict.NONE
    if verdict is not Verdict.NONE:
        return CanaryNews(verdict, policy, text, champion)
    return CanaryNews(Verdict.NONE, '', '', champion) if champion else None
