# SPDX-License-Identifier: Apache-2.0
"""
Check that two policies can serve the same robots, before a split between them. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicySignature:
    """The names, cameras and history that a policy needs."""

    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[str, ...]
    observation_steps: int
    observation_stride_steps: int


FIELD_TEXTS = {
    'action_names': 'actions',
    'state_names': 'values of observation.state',
    'cameras': 'cameras',
    'observation_steps': 'observations per request',
    'observation_stride_steps': 'control steps between two observations',
}


def incompatibility(
    signature: PolicySignature, other_slot: str, other_signature: PolicySignature
) -> str:
    """Return why a slot cannot serve the robots of `other_slot`; empty when it can."""
    for field, what in FIELD_TEXTS.items():
        value, other = getattr(signature, field), getattr(other_signature, field)
        if field == 'cameras':
            value, other = tuple(sorted(value)), tuple(sorted(other))
        # empty names: the policy has none and uses those of the robot
        if value != other and ((value and other) or field == 'cameras'):
            return (
                f'incompatible with slot {other_slot}: {what} differ: {_shorten(value)} / '
                f'{_shorten(other)}; load policies for the same robots into the slots'
            )
    return ''


def _shorten(value: tuple[str, ...] | int) -> str:
    text = ', '.join(value) or 'none' if isinstance(value, tuple) else str(value)
    return text if len(text) <= 200 else f'{text[:200]}...'
