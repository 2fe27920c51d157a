"""
Interlocks: below or above a bound of a value of the state, actions are forced.

They apply in the order of the file, so of two that force the same action the later one wins. What
is forced is still kept within the limits, of an immediate one within those of position and
velocity alone. A bound itself is allowed; an interlock with both bounds forces outside of them.
Plain; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from lerobot_serve.cage.description import Interlock
from lerobot_serve.cage.result import is_numeric_array


@dataclass(frozen=True, slots=True, eq=False)
class InterlockRule:
    """An interlock as indices: the state it looks at, and the actions it forces."""

    name: str
    state_name: str
    state: int
    low: float
    high: float
    actions: np.ndarray
    values: np.ndarray
    immediate: bool


class Interlocks:
    """The rules of a robot. Raises ValueError for a rule that could never be followed."""

    def __init__(
        self,
        interlocks: tuple[Interlock, ...],
        state_names: tuple[str, ...],
        action_names: tuple[str, ...],
    ) -> None:
        self._rules = [_rule(one, state_names, action_names) for one in interlocks]
        self._shape = (len(state_names),)

    def force(self, state: np.ndarray | None) -> bool:
        """Return whether a rule forces now."""
        return bool(self._rules) and bool(self.check(state)[0])

    def check(self, state: np.ndarray | None) -> tuple[list[InterlockRule], str]:
        """
        Return the rules that force now, and the first state that one needs and nobody knows.

        An unknown state silences only the rules that need it.
        """
        active, unknown = [], ''
        known = is_numeric_array(state, self._shape)
        for rule in self._rules:
            value = float(state[rule.state]) if known else inf
            if not isfinite(value):
                unknown = unknown or f'{rule.name}: {rule.state_name} is not known'
            elif not rule.low <= value <= rule.high:
                active.append(rule)
        return active, unknown


def _rule(
    interlock: Interlock, state_names: tuple[str, ...], action_names: tuple[str, ...]
) -> InterlockRule:
    name, low, high = interlock.name, interlock.below, interlock.above
    bounds = [bound for bound in (low, high) if bound is not None]
    if not bounds or not all(map(isfinite, bounds)) or bounds != sorted(bounds):
        raise ValueError(f'interlock {name}: needs a bound, below not over above, got {bounds}')
    if interlock.state not in state_names:
        raise ValueError(
            f'interlock {name}: there is no state {interlock.state!r} in {", ".join(state_names)}'
        )
    unknown = [action for action in interlock.then if action not in action_names]
    if unknown or not interlock.then:
        raise ValueError(
            f'interlock {name}: must force some of {", ".join(action_names)}, got {unknown}'
        )
    if not all(map(isfinite, interlock.then.values())):
        raise ValueError(f'interlock {name}: can force only what is finite')
    return InterlockRule(
        name,
        interlock.state,
        state_names.index(interlock.state),
        -inf if low is None else low,
        inf if high is None else high,
        np.array([action_names.index(action) for action in interlock.then]),
        np.array(list(interlock.then.values()), float),
        interlock.immediate,
    )
