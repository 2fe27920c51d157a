# SPDX-License-Identifier: Apache-2.0
"""
Decodes the limits of a trace header; shares no code with the cage that the audit judges.

A trace proves the position of each command and its step from the command before. Acceleration and
lead need the measured state, which a trace does not have. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
import json
from math import inf
from typing import Any, NamedTuple

from lerobot_serve.tools.traces.fields import number, text, values
from lerobot_serve.trace.format.records import Record

# relative rounding error of a float32
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class CommandBounds:
    """One value per action; `step` is the largest change in one control step."""

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    step: tuple[float, ...]
    is_velocity: tuple[bool, ...]
    # actions that an interlock may force at once
    immediate: frozenset[str] = frozenset()


def read_bounds(value: Any) -> CommandBounds:
    """Decode the parameter `limits`: a JSON object, or its text. Raises ValueError."""
    content = _opened(value)
    step_s = number(content, 'step_s')
    rows = values(content, 'actions')
    if step_s is None or step_s <= 0 or not rows:
        raise ValueError('the limits of the header have no step_s above 0 or no actions')
    bounds = [_joint_bounds(row, step_s) for row in rows]
    immediate = values(content, 'immediate') or []
    return CommandBounds(
        names=tuple(each.name for each in bounds),
        low=tuple(each.low for each in bounds),
        high=tuple(each.high for each in bounds),
        step=tuple(each.step for each in bounds),
        is_velocity=tuple(each.is_velocity for each in bounds),
        immediate=frozenset(name for name in immediate if type(name) is str),
    )


def _opened(value: Any) -> Record:
    try:
        content = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        content = None
    if type(content) is not dict:
        raise ValueError('the limits of the header are not a JSON object')
    return content


class _JointBounds(NamedTuple):
    """One value of each field of CommandBounds."""

    name: str
    low: float
    high: float
    step: float
    is_velocity: bool


def _joint_bounds(row: Any, step_s: float) -> _JointBounds:
    """Return the bounds of one action. Raises ValueError."""
    if type(row) is not dict or row.get('motion') not in ('position', 'velocity'):
        raise ValueError('the limits of the header have an action without a motion')
    is_velocity = row['motion'] == 'velocity'
    fastest = _limit(row, 'max_velocity')
    change = _limit(row, 'max_acceleration') if is_velocity else fastest
    low, high = _limit(row, 'low', -inf), _limit(row, 'high')
    if is_velocity:
        low, high = max(low, -fastest), min(high, fastest)
    step = min(_limit(row, 'max_step'), change * step_s)
    name = text(row, 'name')
    return _JointBounds(name, low - _slack(low), high + _slack(high), step, is_velocity)


def _limit(row: Record, name: str, nothing: float = inf) -> float:
    if row.get(name) is None:
        return nothing
    value = number(row, name)
    if value is None:
        raise ValueError(f'{name} in the limits of the header is not a number')
    return value


def _slack(bound: float) -> float:
    return ROUNDING * max(1.0, abs(bound)) if abs(bound) < inf else 0.0
