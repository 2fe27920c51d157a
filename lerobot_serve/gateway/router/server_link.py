# SPDX-License-Identifier: Apache-2.0
"""
The link to the router: its services, requests, and the replies to all callers of the gateway.

Implemented over ROS 2 in gateway.ros.ros_link and over Zenoh in gateway.router.zenoh_link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lerobot_serve.contract.services.session import SessionRequest


class CameraReply(Protocol):
    """CameraSpec.msg."""

    name: str
    height: int
    width: int
    channels: int


class PolicyReply(Protocol):
    """What the responses of OpenSession and GetStatus say about the policy."""

    state_names: Sequence[str]
    action_names: Sequence[str]
    cameras: Sequence[CameraReply]
    chunk_size: int
    trained_fps: float
    observation_steps: int


class SessionReply(PolicyReply, Protocol):
    """The response of OpenSession."""

    policy: str
    policy_type: str
    schema_version: int
    warnings: Sequence[str]


class ServerState(Protocol):
    """ServerStatus.msg."""

    policy: str
    policy_type: str
    text: str


class StatusReply(PolicyReply, Protocol):
    """The response of GetStatus."""

    status: ServerState
    default_task: str
    task_pinned: bool


class Presence(Enum):
    """What a link noticed about the router."""

    # it may be back
    THERE = 'there'
    # it closed the replies: it ends, restarts, or has no session of this gateway left
    CLOSED = 'closed'
    # killed, hung or cut off
    LOST = 'lost'


@dataclass(frozen=True, slots=True)
class LinkCallbacks:
    """What a link calls in threads of its own; each deposits and returns."""

    on_chunk: Callable[[bytes], None]
    on_no_session: Callable[[bytes], None]
    on_presence: Callable[[Presence], None]


class ServerLink(Protocol):
    """See the module. Methods with a timeout block; the event loop calls the others."""

    @property
    def server(self) -> str:
        """The name of the router."""

    def is_available(self) -> bool:
        """Return whether the services are discovered."""

    def reply_topic(self, session_epoch: int) -> str:
        """Return where the router replies in one session."""

    def send(self, raw: bytes) -> None:
        """Publish the bytes of an Observation."""

    def announce(
        self,
        client_id: str,
        session_epoch: int,
        episode: int,
        episode_id: str,
        on_refusal: Callable[[str], None],
    ) -> None:
        """Announce the next episode of a session; another thread calls `on_refusal`."""

    def status(self, timeout_s: float) -> StatusReply:
        """Return the status. Raises ServerUnreachable."""

    def open(self, session_request: SessionRequest, timeout_s: float) -> SessionReply:
        """Open a session. Raises SessionRefused and ServerUnreachable."""

    def wait_until_matched(self, timeout_s: float) -> bool:
        """Wait until requests and replies pass; return False after the timeout."""

    def close_session(self, session_request: SessionRequest, timeout_s: float) -> None:
        """Close a session. Raises ServerUnreachable."""
