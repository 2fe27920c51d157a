# SPDX-License-Identifier: Apache-2.0
"""
States of routers, robots, learners and servers as operators see them; states are given by their
names, as `unknown (9)` for a number of a newer version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
import re
from typing import Any, TypeVar

from msgspec import structs

from lerobot_serve.contract.records import (
    CanaryState,
    EdgeState,
    ReplicaState,
    ServerStatus,
    SlotState,
)
from lerobot_serve.contract.types import Constants
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.learners import LearnerView, NO_STATE

T = TypeVar('T')
# names of the constants of states
SLOT_NAMES = tuple(SlotState.State.__members__)
EDGE_NAMES = tuple(EdgeState.State.__members__)
RUNG_NAMES = tuple(EdgeState.Rung.__members__)
SERVER_NAMES = tuple(ServerStatus.State.__members__)
# of a view, the field that holds its record
RECORDS = {RobotView: 'edge', RouterView: 'state', LearnerView: 'state'}


def named(kind: type[Constants] | None, name: Any) -> Any:
    """Return the constant of a name; another value as it is."""
    if not (isinstance(name, str) and isinstance(kind, type)):
        return name
    unknown = re.fullmatch(r'unknown \((\d+)\)', name)
    return kind(int(unknown[1])) if unknown else kind[name]


def robot_of(
    node: str, client_id: str = '', state: str = 'CONNECTING', rung: str = 'POLICY', **edge: Any
) -> RobotView:
    return changed(RobotView(node), client_id=client_id, state=state, rung=rung, **edge)


def router_of(name: str = '/r', health: str = '', **values: Any) -> RouterView:
    return changed(RouterView(name, canary=canary_of()), health=health, **values)


def canary_of(*given: Any, **more: Any) -> CanaryState:
    names = ('state', 'candidate_policy', 'champion_policy', 'step', 'step_count')
    names = (*names, 'share_percent', 'text')
    return _record(CanaryState, names, given, {'estimated_remaining_episodes': -1, **more})


def slot_of(*given: Any, **more: Any) -> SlotState:
    names = ('slot', 'policy', 'state', 'text', 'share_percent')
    return _record(SlotState, names, given, {'state': 'HEALTHY', **more})


def replica_of(*given: Any, **more: Any) -> ReplicaState:
    return _record(ReplicaState, ('server', 'state', 'text', 'policy'), given, more)


def learner_of(node: str, state: str, silent_s: float | None = None, **more: Any) -> LearnerView:
    """Return a learner, of which no number is known that is not given."""
    known = {} if state == NO_STATE else {'state': state, **more}
    return changed(LearnerView(node, silent_s=silent_s), **known)


def server_of(name: str, state: str, **more: Any) -> ServerStatus:
    return changed(ServerStatus(server=name), state=state, **more)


def _record(kind: type[T], names: Sequence[str], given: Sequence[Any], more: dict[str, Any]) -> T:
    return changed(kind(), **(more | dict(zip(names, given, strict=False))))


def changed(given: T, **values: Any) -> T:
    """Return a record, or a view, with other values; those of its record may be given with it."""
    kind: Any = type(given)
    if kind not in RECORDS:
        enums = {name: getattr(kind, name.title(), None) for name in values}
        known = {name: named(enums[name], value) for name, value in values.items()}
        return structs.replace(given, **known)
    record = getattr(given, RECORDS[kind])
    inner = {name: values.pop(name) for name in record.__struct_fields__ if name in values}
    if inner:
        values[RECORDS[kind]] = changed(record, **inner)
    return replace(given, **values)
