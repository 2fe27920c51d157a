# SPDX-License-Identifier: Apache-2.0
"""
Whether two policies can serve the same robots: checked before a split between them goes live.
Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicySignature:
    """What a policy expects of a request and gives."""

    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[str, ...]
    observation_steps: int
    observation_stride_steps: int


FIELD_TEXTS = {
    'action_names': 'actions',
    'state_names': 'values of observation.state',
    'cameras': 'cameras',
    'observation_steps': 'observations a request',
    'observation_stride_steps': 'control steps between two observations',
}


def incompatibility(contract: PolicySignature, other: str, its: PolicySignature) -> str:
    """Return why a slot cannot serve the robots of the slot `other`, empty when it can."""
    for field, what in FIELD_TEXTS.items():
        mine, theirs = getattr(contract, field), getattr(its, field)
        if field == 'cameras':
            mine, theirs = tuple(sorted(mine)), tuple(sorted(theirs))
        # empty names: the policy does not know them, and takes the robot's
        if mine != theirs and ((mine and theirs) or field == 'cameras'):
            return (
                f'incompatible with slot {other}: {what} differ: {_shown(mine)} / '
                f'{_shown(theirs)}; load policies for the same robots into the slots'
            )
    return ''


def _shown(value: tuple[str, ...] | int) -> str:
    text = ', '.join(value) or 'none' if isinstance(value, tuple) else str(value)
    return text if len(text) <= 200 else f'{text[:200]}...'
