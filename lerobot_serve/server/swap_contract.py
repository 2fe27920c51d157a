# SPDX-License-Identifier: Apache-2.0
"""
What two policies must have in common for one to replace the other under open sessions: one table.

Pure. Whatever a client agreed on when it opened its session is a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.policies.base import PolicyDescription

SHOWN_LENGTH = 200
# two policies of a robot differ less in their training data; degrees are 57 times radians. A robot
# compares the unit with its limits only when it opens its session
UNIT_FACTOR = 10.0


@dataclass(frozen=True, slots=True)
class PolicyContract:
    """A policy as its clients know it; `kind` is that of the loader, such as lerobot."""

    kind: str
    description: PolicyDescription


def _cameras(description: PolicyDescription) -> str:
    listed = sorted(
        f'{camera.name} {camera.height}x{camera.width}x{camera.channels}'
        for camera in description.cameras
    )
    return ', '.join(listed) or 'none'


def _names(names: tuple[str, ...]) -> str:
    return ', '.join(names) or 'none'


# what must be equal -> its value in words
CONTRACT: dict[str, Callable[[PolicyContract], str]] = {
    'policy kind': lambda policy: policy.kind,
    'policy type': lambda policy: policy.description.policy_type,
    'state names': lambda policy: _names(policy.description.state_names),
    'action names': lambda policy: _names(policy.description.action_names),
    'cameras': lambda policy: _cameras(policy.description),
    'chunk size': lambda policy: str(policy.description.chunk_size),
    'trained rate [Hz]': lambda policy: f'{policy.description.trained_fps:g}',
    'observations per request': lambda policy: str(policy.description.observation_steps),
    'control steps between observations': (
        lambda policy: str(policy.description.observation_stride_steps)
    ),
    'state class': lambda policy: policy.description.state_class.name.lower(),
    'real-time chunking': lambda policy: 'yes' if policy.description.supports_rtc else 'no',
}


def contract_differences(old: PolicyContract, new: PolicyContract) -> str:
    """Return each difference with both values; empty when the new policy may replace the old."""
    values = [(what, value(old), value(new)) for what, value in CONTRACT.items()]
    found = [each for each in values if each[1] != each[2]]
    before, after = (_widest(each.description.action_range) for each in (old, new))
    if not _is_same_unit(before, after):
        found.append(('unit of the actions', _range_text(before), _range_text(after)))
    limit, new_limit = (each.description.max_delay_steps for each in (old, new))
    if _is_tighter(limit, new_limit):
        found.append(('longest inference delay', _delay_text(limit), _delay_text(new_limit)))
    return '; '.join(
        f'{what}: {_shortened(before)} served, {_shortened(after)} given'
        for what, before, after in found
    )


def _widest(actions: ActionRange | None) -> float:
    """Return the largest magnitude of any action; 0 when it is not known."""
    return max(map(abs, (*actions.low, *actions.high))) if actions else 0.0


def _is_same_unit(before: float, after: float) -> bool:
    return max(before, after) < UNIT_FACTOR * min(before, after) or not (before and after)


def _is_tighter(before: int, after: int) -> bool:
    """Return whether requests within one limit may be over the other; 0 is without a limit."""
    return after > 0 and (before == 0 or after < before)


def _delay_text(limit_steps: int) -> str:
    return f'{limit_steps} control steps' if limit_steps else 'without a limit'


def _range_text(widest: float) -> str:
    return f'actions up to {widest:.4g} in training'


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_LENGTH else f'{text[:SHOWN_LENGTH]}...'
