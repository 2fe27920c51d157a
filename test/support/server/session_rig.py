# SPDX-License-Identifier: Apache-2.0
"""A policy, what its operator allows, and a robot that fits; for the tests of sessions."""

from __future__ import annotations

from msgspec import structs

from lerobot_serve.contract.names import ros_token
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.policies.base import PolicyCamera
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_table import SessionTable
from support.contract.session_request import session_request
from support.replacing import replace
from support.server.fake_policy import FAKE_DESCRIPTION, JOINTS

FRONT = 'observation.images.front'
SERVED = replace(FAKE_DESCRIPTION, cameras=(PolicyCamera(FRONT, 480, 640),))
S = 1_000_000_000
RULES = ServerParameters(
    max_sessions=2,
    default_task='fold the towel',
    session_grace_s=5.0,
    session_idle_s=60.0,
    max_sessions_per_process=100,
    max_waiting_goals=3,
    network_round_trip_ms=0.0,
)


def ask(client_id: str = 'robot_1', epoch: int = 7, **changes: object) -> OpenSessionRequest:
    fitting = session_request(
        client_id,
        epoch,
        f'/{ros_token(client_id)}/edge_controller/action_chunk',
        JOINTS,
        cameras=(CameraSpec(FRONT, 480, 640),),
    )
    return structs.replace(fitting, **changes)


def table(served: dict[str, object] | None = None, **rules: object) -> SessionTable:
    return SessionTable(replace(SERVED, **(served or {})), replace(RULES, **rules))
