# SPDX-License-Identifier: Apache-2.0
"""The session that a stream opens with its first message, and what is served. Pure."""

from __future__ import annotations

from typing import Any

from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.contract.services.policy_service import Action, Camera, Policy
from lerobot_serve.gateway.upstream import PolicyContract, SessionTerms


def terms_of(session: Any) -> SessionTerms:
    """Return the terms in a Session; the server judges them."""
    return SessionTerms(
        state_names=tuple(session.state_names),
        action_names=tuple(session.action_names),
        cameras=tuple(
            CameraSpec(camera.name, camera.height, camera.width, camera.channels)
            for camera in session.cameras
        ),
        fps=session.fps,
        policy=session.policy,
        task=session.task,
        tags=tuple((tag.key, tag.value) for tag in session.tags),
    )


def policy_of(contract: PolicyContract, client_id: str = '') -> Any:
    """Return the Policy of a contract; `client_id` is the name of an open session."""
    return Policy(
        id=contract.policy,
        fingerprint=contract.fingerprint,
        policy_type=contract.policy_type,
        state_names=contract.state_names,
        action_names=contract.action_names,
        cameras=[
            Camera(name=name, height=height, width=width, channels=channels)
            for name, (height, width, channels) in contract.cameras.items()
        ],
        chunk_steps=contract.chunk_steps,
        control_hz=contract.control_hz,
        observation_steps=contract.observation_steps,
        default_task=contract.default_task,
        task_pinned=contract.task_pinned,
        text=contract.text,
        client_id=client_id,
        warnings=contract.warnings,
    )


def opened_action(contract: PolicyContract, client_id: str, step_index: int) -> bytes:
    """Return the reply to a message that opened a session."""
    policy = policy_of(contract, client_id)
    action = Action(step_index=step_index, model_version=contract.fingerprint, policy=policy)
    return bytes(action.SerializeToString())
