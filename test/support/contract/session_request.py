# SPDX-License-Identifier: Apache-2.0
"""The session request of a robot."""

from __future__ import annotations

from typing import Any

from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Codec


def session_request(
    client_id: str, epoch: int, reply_topic: str, joints: tuple[str, ...], **more: Any
) -> OpenSessionRequest:
    """Return the request of a robot whose state and whose actions are these joints."""
    return OpenSessionRequest(
        client_id=client_id,
        session_epoch=epoch,
        reply_topic=reply_topic,
        state_names=joints,
        action_names=joints,
        **{
            'schema_version': SCHEMA_VERSION,
            'instance': 1,
            'fps': 30.0,
            'codec': Codec.JPEG,
            **more,
        },
    )
