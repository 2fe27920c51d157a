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
    """A verdict on a policy, by its fingerprint, with the reason."""

    verdict: Verdict
    policy: str
    text: str


def canary_news(state: str, planned: str, candidate: str, text: str) -> CanaryNews | None:
    """Return the verdict of a canary state; None for none. An unknown state has none."""
    policy = planned or candidate
    verdict = VERDICTS.get(state, Verdict.NONE)
    if verdict is Verdict.NONE or not policy:
        return None
    return CanaryNews(verdict, policy, text)


def digest_of(fingerprint: str) -> str:
    """Return the hash of a fingerprint: the name before it is free, and differs by server."""
    return fingerprint.rpartition('@')[2]
