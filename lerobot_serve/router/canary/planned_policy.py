# SPDX-License-Identifier: Apache-2.0
"""
The policy for which a plan was started: another one in slot b gets no episodes. Pure.

A server that restarts with other weights, or a file that is replaced, must not begin a rollout
that no person started.
"""

from __future__ import annotations

from enum import Enum


class PlanFit(Enum):
    """How the policy in the slot of the candidate fits the plan."""

    # nothing to decide yet
    UNKNOWN = 'unknown'
    # the plan came with the start of the router: it is for the first candidate
    FIRST = 'first'
    FITS = 'fits'
    # it waits without a share
    OTHER = 'other'


# whether the plan has a policy, whether the candidate is known, whether they are the same
PLAN_FITS: dict[tuple[bool, bool, bool], PlanFit] = {
    (False, False, False): PlanFit.UNKNOWN,
    (False, False, True): PlanFit.UNKNOWN,
    (False, True, False): PlanFit.FIRST,
    (False, True, True): PlanFit.FIRST,
    (True, False, False): PlanFit.UNKNOWN,
    (True, False, True): PlanFit.UNKNOWN,
    (True, True, False): PlanFit.OTHER,
    (True, True, True): PlanFit.FITS,
}


def plan_fit(planned: str, candidate: str) -> PlanFit:
    """Return how a candidate fits a plan; each is a fingerprint, empty when unknown."""
    return PLAN_FITS[bool(planned), bool(candidate), planned == candidate]


def other_policy_text(planned: str, candidate: str) -> str:
    """Return why a candidate waits that the plan is not for; empty when it is for it."""
    if plan_fit(planned, candidate) is not PlanFit.OTHER:
        return ''
    return (
        f'the plan is for {planned}, and slot b serves {candidate}, which gets no episodes. To '
        'start a rollout of it: `lerobot-serve rollout start`'
    )
