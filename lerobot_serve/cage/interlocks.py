# SPDX-License-Identifier: Apache-2.0
"""
Interlocks: force actions while a state value is below or above a bound.

They apply in file order: the later of two interlocks on one action wins. Forced values are still
bounded by the limits; those of an immediate interlock by position and velocity only. A value equal
to a bound is allowed; an interlock with both bounds acts outside of them.
Plain; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.cage.description import Interlock, is_numeric_array, JointValues


@dataclass(frozen=True, slots=True, eq=False)
class InterlockRule:
    """An interlock as indices: the state value it checks, and the actions it forces."""

    name: str
    state_name: str
    state: int
    low: float
    high: float
    actions: NDArray[np.int_]
    values: JointValues
    immediate: bool


class Interlocks:
    """The rules of a robot. Raises ValueError for a rule that can never apply."""

    def __init__(
        self,
        interlocks: tuple[Interlock, ...],
        state_names: tuple[str, ...],
        action_names: tuple[str, ...],
    ) -> None:
        self._rules = [_rule(one, state_names, action_names) for one in interlocks]
        self._shape = (len(state_names),)

    def is_active(self, state: JointValues | None) -> bool:
        """Return whether any rule is active."""
        return bool(self._rules) and bool(self.check(state)[0])

    def check(self, state: JointValues | None) -> tuple[list[InterlockRule], str]:
        """
        Return the active rules, and the first unknown state value that a rule needs.

        An unknown value disables only the rules that need it.
        """
        active, unknown = [], ''
        known = state if is_numeric_array(state, self._shape) else None
        for rule in self._rules:
            value = inf if known is None else float(known[rule.state])
            if not isfinite(value):
                unknown = unknown or f'{rule.name}: {rule.state_name} unknown'
            elif not rule.low <= value <= rule.high:
                active.append(rule)
        return active, unknown


def _rule(
    interlock: Interlock, state_names: tuple[str, ...], action_names: tuple[str, ...]
) -> InterlockRule:
    name, low, high = interlock.name, interlock.below, interlock.above
    bounds = [bound for bound in (low, high) if bound is not None]
    if not bounds or not all(map(isfinite, bounds)) or bounds != sorted(bounds):
        raise ValueError(
            f'interlock {name}: needs below or above, with below <= above, got {bounds}'
        )
    if interlock.state not in state_names:
        raise ValueError(
            f'interlock {name}: no state {interlock.state!r}; choose from {", ".join(state_names)}'
        )
    unknown = [action for action in interlock.then if action not in action_names]
    if unknown or not interlock.then:
        raise ValueError(
            f'interlock {name}: must force some of {", ".join(action_names)}, got {unknown}'
        )
    if not all(map(isfinite, interlock.then.values())):
        raise ValueError(f'interlock {name}: forced values must be finite')
    return InterlockRule(
        name,
        state_name=interlock.state,
        state=state_names.index(interlock.state),
        low=-inf if low is None else low,
        high=inf if high is None else high,
        actions=np.array([action_names.index(action) for action in interlock.then]),
        values=np.array(list(interlock.then.values()), float),
        immediate=interlock.immediate,
    )
