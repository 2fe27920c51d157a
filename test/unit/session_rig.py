"""A policy, what its operator allows, and a robot that fits; for the tests of sessions."""

from __future__ import annotations

from dataclasses import replace

from lerobot_serve.policies.base import Camera
from lerobot_serve.policies.fake import DESCRIPTION, JOINTS
from lerobot_serve.server.contract import Rules
from lerobot_serve.server.sessions import SessionTable
from lerobot_serve.wire.names import ros_token
from lerobot_serve.wire.session import CameraSpec, SessionAsk

FRONT = 'observation.images.front'
SERVED = replace(DESCRIPTION, cameras=(Camera(FRONT, 480, 640),))
S = 1_000_000_000
RULES = Rules(
    max_sessions=2,
    default_task='fold the towel',
    pin_task=False,
    strict_fps=False,
    grace_ns=5 * S,
    idle_ns=60 * S,
    process_sessions=100,
    one_shots=3,
)


def ask(client_id: str = 'robot_1', epoch: int = 7, **changes: object) -> SessionAsk:
    fitting = SessionAsk(
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
