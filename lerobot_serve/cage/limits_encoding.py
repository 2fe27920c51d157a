# SPDX-License-Identifier: Apache-2.0
"""
Encode and decode a robot's limits, so that servers and routers can evaluate its cage.

JSON with the control step and one object per action; a missing or null number is not a limit.
Unknown keys are ignored. Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
from math import inf, isfinite
from typing import Any

import numpy as np

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.cage.limits import MotionLimits

EXTENSION_KEY = 'lerobot_serve.limits'
BYTES_LIMIT = 1 << 16
NAME_LIMIT = 128
# of a control step [s]
SHORTEST_STEP_S, LONGEST_STEP_S = 1e-5, 1e3
# a larger number means no limit; computing with it could overflow
MAX_NUMBER = 1e12
# defaults of missing numbers
NO_LIMITS = {
    'low': -inf,
    'high': inf,
    'max_step': inf,
    'max_velocity': inf,
    'max_acceleration': inf,
    'max_lead': inf,
}


def encode_limits(
    actions: Sequence[ActionLimit], step_s: float, immediate: Sequence[str] = ()
) -> bytes:
    """
    Encode the limits. Names are those of the receiver, also in `immediate`, the actions that an
    immediate interlock may force.
    """
    rows = [
        {
            'name': action.name,
            'motion': action.motion.value,
            **{key: _number_or_none(getattr(action, key)) for key in NO_LIMITS},
        }
        for action in actions
    ]
    content = {'step_s': step_s, 'actions': rows}
    if immediate:
        content['immediate'] = list(immediate)
    return json.dumps(content, ensure_ascii=False).encode()


def decode_limits(data: bytes) -> MotionLimits:
    """Decode limits. Raises ValueError with a readable text."""
    if len(data) > BYTES_LIMIT:
        raise ValueError(f'limits: {len(data)} bytes, at most {BYTES_LIMIT} are allowed')
    try:
        content = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f'limits: not JSON in UTF-8 ({str(error)[:80]})') from None
    if not isinstance(content, dict) or not isinstance(content.get('actions'), list):
        raise ValueError('limits: expected an object with step_s and a list of actions')
    step_s = _number(content.get('step_s'), 'step_s')
    if not SHORTEST_STEP_S <= step_s <= LONGEST_STEP_S:
        raise ValueError(
            f'limits: step_s must be in [{SHORTEST_STEP_S:g}, {LONGEST_STEP_S:g}], got {step_s:g}'
        )
    actions = tuple(_action(row, f'action {i + 1}') for i, row in enumerate(content['actions']))
    try:
        with np.errstate(all='ignore'):
            return MotionLimits(actions, step_s)
    except ValueError as error:
        raise ValueError(f'limits: {error}') from None


def _action(row: Any, place: str) -> ActionLimit:
    if not isinstance(row, dict):
        raise ValueError(f'limits: {place}: expected an object, got {str(row)[:40]!r}')
    name, motion = row.get('name'), row.get('motion')
    if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > NAME_LIMIT:
        raise ValueError(
            f'limits: {place}: name must be printable text of at most {NAME_LIMIT} bytes, '
            f'got {str(name)[:40]!r}'
        )
    if motion not in [each.value for each in Motion]:
        raise ValueError(
            f'limits: {name}: motion must be position or velocity, got {str(motion)[:40]!r}'
        )
    numbers = {
        key: nothing if row.get(key) is None else _number(row[key], f'{name}: {key}')
        for key, nothing in NO_LIMITS.items()
    }
    return ActionLimit(name, name, Motion(motion), **numbers)


def _number(value: Any, what: str) -> float:
    """Return a number of at most MAX_NUMBER. Raises ValueError."""
    if type(value) not in (int, float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise ValueError(
            f'limits: {what} must be a number between -{MAX_NUMBER:g} and {MAX_NUMBER:g}, '
            f'got {str(value)[:40]}'
        )
    return float(value)


def _number_or_none(value: float) -> float | None:
    return value if isfinite(value) else None
