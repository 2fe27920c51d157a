# SPDX-License-Identifier: Apache-2.0
"""A policy, what its operator allows, and a robot that fits; for the tests of sessions."""

from __future__ import annotations

from dataclasses import replace

from lerobot_serve.contract.names import ros_token
from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.contract.services.session import SessionRequest
from lerobot_serve.policies.base import PolicyCamera
from lerobot_serve.server.sessions.session_table import SessionTable
from lerobot_serve.server.sessions.session_validation import SessionRules
from support.server.fake_policy import FAKE_DESCRIPTION, JOINTS

FRONT = 'observation.images.front'
SERVED = replace(FAKE_DESCRIPTION, cameras=(PolicyCamera(FRONT, 480, 640),))
S = 1_000_000_000
RULES = SessionRules(
    max_sessions=2,
    default_task='fold the towel',
    pin_task=False,
    require_trained_fps=False,
    grace_ns=5 * S,
    idle_ns=60 * S,
    process_sessions=100,
    one_shots=3,
)


def ask(client_id: str = 'robot_1', epoch: int = 7, **changes: object) -> SessionRequest:
    fitting = SessionRequest(
        client_id=client_id,
        instance=1,
        session_epoch=epoch,
        reply_topic=f'/{ros_token(client_id)}/edge_controller/action_chunk',
        state_names=JOINTS,
        action_names=JOINTS,
        cameras=(CameraSpec(FRONT, 480, 640),),
        fps=30.0,
    )
    return replace(fitting, **changes)


def table(served: dict[str, object] | None = None, **rules: object) -> SessionTable:
    return SessionTable(replace(SERVED, **(served or {})), replace(RULES, **rules))
