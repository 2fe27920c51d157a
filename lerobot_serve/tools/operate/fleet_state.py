# SPDX-License-Identifier: Apache-2.0
"""
What routers, servers and edges publish, with node and age, and how robots that publish nothing now
are listed. Immutable; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from lerobot_serve.contract.records import (
    CanaryState,
    EdgeState,
    GuardState,
    RouterState,
    SlotState,
)
from lerobot_serve.contract.types import Constants
from lerobot_serve.router.canary.states import CanaryPhase

# of a robot that publishes nothing now; its other values are old
SILENT = 'SILENT'
CHAMPION_SLOT, CANDIDATE_SLOT = 'a', 'b'
# of a router or a robot whose state has not arrived
NO_STATE, NO_CANARY = RouterState(), CanaryState()
NOT_HEARD = EdgeState(state=EdgeState.State.CONNECTING)


@dataclass(frozen=True, slots=True)
class RouterView:
    """A router with its canary. `age_s` is the time since its state arrived."""

    name: str
    state: RouterState = NO_STATE
    canary: CanaryState = NO_CANARY
    age_s: float = 0.0

    def slot(self, name: str) -> SlotState | None:
        """Return a slot; None if the router has none of this name."""
        return next((slot for slot in self.state.slots if slot.slot == name), None)


def waits_for_start(canary: CanaryState) -> bool:
    """Return whether slot b serves another policy than the one of the plan."""
    planned, candidate = canary.planned_policy, canary.candidate_policy
    is_other = bool(planned and candidate and planned != candidate)
    return canary.state is CanaryPhase.WAITING and is_other


def latency_ms_p95(slot: SlotState) -> float:
    """Return the largest p95 of the replicas of a slot [ms]; 0 before the first reply."""
    return max((replica.latency_ms_p95 for replica in slot.replicas), default=0.0)


def headroom(guard: GuardState) -> float | None:
    """
    Return the share of the limit of a guard that is left: negative above the limit, None without
    data, or for a guard that is off, whose limit is 0.
    """
    return None if isnan(guard.value) or not guard.limit else 1 - guard.value / guard.limit


def shown(record: Struct, *names: str, **others: str) -> dict[str, Any]:
    """
    Return fields of a record, `others` by another key: constants as their names, and None for a
    number that is not known.
    """
    keys = {name: name for name in names} | others
    return {key: _shown(getattr(record, name)) for key, name in keys.items()}


def _shown(value: object) -> object:
    if isinstance(value, Constants):
        return value.name
    return None if isinstance(value, float) and not isfinite(value) else value


@dataclass(frozen=True, slots=True)
class RobotView:
    """
    A robot with its last state; `age_s` is how long a silent one has sent nothing, None if
    unknown, or if it is not silent. The reason of a silent one says why it is.
    """

    node: str
    edge: EdgeState = NOT_HEARD
    is_silent: bool = False
    age_s: float | None = None

    @property
    def state(self) -> str:
        """The name of its state; SILENT for one that publishes nothing now."""
        return SILENT if self.is_silent else self.edge.state.name

    @property
    def name(self) -> str:
        """The namespace of the edge, as operators write it; the node name without one."""
        return self.node.rpartition('/')[0].strip('/') or self.node.strip('/')


STOP_BY_HAND = 'if it moves, stop it at its power or its stop button'


# why a robot is silent: it was found before and is not now; it is found and its state does not
# arrive; its last state is old and no new one comes; it is not heard of, for whatever reason
MISSING = 'not found; it hangs, its link is cut, or it was stopped'
MUTE = 'found, and sends no state: it hangs or its link is cut'
HUNG = 'sends no new state: it hangs or its link is cut'
UNHEARD = 'it ended, hangs, or is not reached'


def silent(robot: RobotView, why: str, age_s: float | None = None) -> RobotView:
    """Return a robot, with its last state, as one that is silent for so long, if that is known."""
    since = 'silent: ' if age_s is None else f'silent for {age_text(age_s)}: '
    return RobotView(robot.node, replace(robot.edge, reason=f'{since}{why}'), True, age_s)


def refusal(robot: RobotView) -> str:
    """Return why a verb that may start motion is refused on a silent robot, and what to do."""
    return (
        f'{robot.name} is {robot.edge.reason}. What it would do is not known: {STOP_BY_HAND}. '
        'Nothing was changed'
    )


def age_text(age_s: float) -> str:
    """Return an age in seconds, or in minutes from two minutes on."""
    return f'{age_s:.0f} s' if age_s < 120 else f'{age_s / 60:.0f} min'
