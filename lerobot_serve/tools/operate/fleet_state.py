# SPDX-License-Identifier: Apache-2.0
"""What routers, servers and edges publish, with node and age. Immutable; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any

from msgspec import Struct

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
