# SPDX-License-Identifier: Apache-2.0
"""
States of routers, robots, learners and servers as operators see them; states are given by their
names, as `unknown (9)` for a number of a newer version.
"""

from __future__ import annotations

from dataclasses import fields, replace
import re
from typing import Any, TypeVar

from msgspec import structs

from lerobot_serve.contract.records import (
    CanaryState,
    EdgeState,
    LearnerState,
    ReplicaState,
    RouterState,
    ServerStatus,
    SlotState,
)
from lerobot_serve.contract.types import Constants
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView, ServerView
from lerobot_serve.tools.operate.learners.learner_state import LearnerView, NO_STATE, NOT_HEARD

T = TypeVar('T')
# names of the constants of states
SLOT_NAMES = tuple(SlotState.State.__members__)
EDGE_NAMES = tuple(EdgeState.State.__members__)
RUNG_NAMES = tuple(EdgeState.Rung.__members__)
SERVER_NAMES = tuple(ServerStatus.State.__members__)
# of a view, the field that holds its record
RECORDS = {RobotView: 'edge', RouterView: 'state', LearnerView: 'state', ServerView: 'status'}


def named(kind: type[Constants], name: Any) -> Any:
    """Return the constant of a name."""
    if not isinstance(name, str):
        return name
    unknown = re.fullmatch(r'unknown \((\d+)\)', name)
    return kind(int(unknown[1])) if unknown else kind[name]


def robot_view(
    node: str, client_id: str = '', state: str = 'CONNECTING', rung: str = 'POLICY', **edge: Any
) -> RobotView:
    return changed(RobotView(node), client_id=client_id, state=state, rung=rung, **edge)


def router_view(
    name: str = '/r',
    health: str = '',
    *,
    canary: CanaryState | None = None,
    age_s: float = 0.0,
    **state: Any,
) -> RouterView:
    return RouterView(name, RouterState(health=health, **state), canary or canary_state(), age_s)


def canary_state(
    state: CanaryPhase = CanaryPhase.OFF,
    candidate: str = '',
    champion: str = '',
    step: int = 0,
    step_count: int = 0,
    share_percent: int = 0,
    text: str = '',
    **more: Any,
) -> CanaryState:
    return CanaryState(
        state=state,
        candidate_policy=candidate,
        champion_policy=champion,
        step=step,
        step_count=step_count,
        share_percent=share_percent,
        text=text,
        **{'estimated_remaining_episodes': -1, **more},
    )


def slot_state(
    slot: str,
    policy: str = '',
    state: str = 'HEALTHY',
    text: str = '',
    share_percent: int = 0,
    **more: Any,
) -> SlotState:
    found = named(SlotState.State, state)
    return SlotState(slot, policy, found, text, share_percent, **more)


def replica_state(
    server: str, state: str = 'UNKNOWN', text: str = '', policy: str = '', **more: Any
) -> ReplicaState:
    found = named(ReplicaState.State, state)
    return ReplicaState(server, state=found, text=text, policy=policy, **more)


def learner_view(node: str, state: str, silent_s: float | None = None, **more: Any) -> LearnerView:
    """Return a learner, of which no number is known that is not given."""
    if state == NO_STATE:
        return LearnerView(node, silent_s=silent_s)
    found = structs.replace(NOT_HEARD, state=named(LearnerState.State, state), **more)
    return LearnerView(node, found, silent_s)


def server_view(name: str, state: str, **more: Any) -> ServerView:
    return ServerView(name, ServerStatus(state=named(ServerStatus.State, state), **more))


def changed(given: T, **values: Any) -> T:
    """Return a record, or a view, with other values; those of its record may be given with it."""
    kind = type(given)
    holder = RECORDS.get(kind)
    if holder is None:
        return structs.replace(given, **_constants(kind, values))
    record = getattr(given, holder)
    inner = {name: values.pop(name) for name in tuple(values) if name in record.__struct_fields__}
    if inner:
        values[holder] = changed(record, **inner)
    if isinstance(given, ServerView):
        return given._replace(**values)
    assert {*values} <= {field.name for field in fields(given)}
    return replace(given, **values)


def _constants(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return values with the constants of those that are given by name."""
    enums = {name: getattr(kind, name.title(), None) for name in values}
    return {
        name: named(enums[name], value) if isinstance(enums[name], type) else value
        for name, value in values.items()
    }
