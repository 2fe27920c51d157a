# SPDX-License-Identifier: Apache-2.0
"""The link to the router over ROS 2: one reply topic for all callers of the gateway."""

from __future__ import annotations

from collections.abc import Callable
import threading

from rclpy.node import Node

from lerobot_serve.contract.services.session import SessionRequest
from lerobot_serve.gateway.router.server_link import (
    LinkCallbacks,
    Presence,
    SessionReply,
    StatusReply,
)
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_client import SessionClient
from lerobot_serve.ros.contract.session_messages import NO_SESSION_TOPIC
from lerobot_serve.ros.topics.dedicated_subscription import (
    DedicatedSubscriptions,
    LivelinessStatus,
)
from lerobot_serve_interfaces.msg import ActionChunk
from lerobot_serve_interfaces.srv import ResetEpisode

# of a relay: its sessions share the topic
REPLY_TOPIC = '~/replies/callers'


class RosServerLink:
    """
    A ServerLink. Built by the thread that builds the node; `run` is the body of a thread, which
    `wake` ends together with `stop`.
    """

    def __init__(
        self, node: Node, server: str, *, lifespan_s: float, stop: threading.Event
    ) -> None:
        self.server = server
        self._client = SessionClient(
            node, server, lifespan_s=lifespan_s, stop=stop, for_fleet=True
        )
        self._topic = node.resolve_topic_name(REPLY_TOPIC)
        self._subscriptions = DedicatedSubscriptions(node, ActionChunk, {}, qos.ACTION_CHUNK)

    def listen(self, callbacks: LinkCallbacks) -> None:
        """Subscribe to the replies, before `run`."""
        add = self._subscriptions.add
        add(REPLY_TOPIC, qos.ACTION_CHUNK, callbacks.on_chunk)
        add(f'{self.server}/{NO_SESSION_TOPIC}', qos.NO_SESSION, callbacks.on_no_session)

        def on_liveliness(now: LivelinessStatus) -> None:
            callbacks.on_presence(presence_of(now))

        self._subscriptions.watch_liveliness(REPLY_TOPIC, on_liveliness)

    def run(self, stop: threading.Event) -> None:
        """Dispatch messages until `stop` is set and `wake` was called."""
        self._subscriptions.run(stop)

    def wake(self) -> None:
        self._subscriptions.wake()

    def is_available(self) -> bool:
        """Return whether the services are discovered."""
        return self._client.is_available()

    def reply_topic(self, session_epoch: int) -> str:
        """Return the full name of the reply topic, the same for each session."""
        return self._topic

    def send(self, raw: bytes) -> None:
        """Publish the bytes of an Observation."""
        self._client.send(raw)

    def announce(
        self,
        client_id: str,
        session_epoch: int,
        episode: int,
        episode_id: str,
        on_refusal: Callable[[str], None],
    ) -> None:
        """Announce the next episode of a session; the executor calls `on_refusal`."""
        self._client.announce(
            reset_request(client_id, session_epoch, episode, episode_id), on_refusal
        )

    def status(self, timeout_s: float) -> StatusReply:
        """Return the status. Blocks. Raises ServerUnreachable."""
        reply: StatusReply = self._client.status(timeout_s)
        return reply

    def open(self, session_request: SessionRequest, timeout_s: float) -> SessionReply:
        """Open a session. Blocks. Raises SessionRefused and ServerUnreachable."""
        reply: SessionReply = self._client.open(session_request, timeout_s)
        return reply

    def wait_until_matched(self, timeout_s: float) -> bool:
        """Wait until requests and replies pass; return False after the timeout."""
        return self._client.wait_until_matched(
            lambda: self._subscriptions.publisher_count(REPLY_TOPIC), timeout_s
        )

    def close_session(self, session_request: SessionRequest, timeout_s: float) -> None:
        """Close a session. Blocks. Raises ServerUnreachable."""
        self._client.close(session_request, timeout_s)

    def close(self) -> None:
        """Destroy all endpoints; call it once `run` has returned and no other thread calls."""
        self._subscriptions.close()
        self._client.destroy_endpoints()


def presence_of(now: LivelinessStatus) -> Presence:
    """Return what a change of the writers of the reply topic means."""
    if now.alive:
        return Presence.THERE
    return Presence.LOST if now.not_alive_change > 0 else Presence.CLOSED


def reset_request(
    client_id: str, session_epoch: int, episode: int, episode_id: str
) -> ResetEpisode.Request:
    return ResetEpisode.Request(
        client_id=client_id, session_epoch=session_epoch, episode=episode, episode_id=episode_id
    )
