# SPDX-License-Identifier: Apache-2.0
"""The link to the router over ROS 2: one reply topic for all callers of the gateway."""

from __future__ import annotations

import threading

from rclpy.node import Node

from lerobot_serve.gateway.router.server_link import (
    LinkCallbacks,
    Presence,
)
from lerobot_serve.local.path import MakePath
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_client import SessionClient
from lerobot_serve.ros.contract.session_messages import NO_SESSION_TOPIC
from lerobot_serve.ros.subscriptions import (
    DedicatedSubscriptions,
    LivelinessStatus,
)
from lerobot_serve_interfaces.msg import ActionChunk

# of a relay: its sessions share the topic
REPLY_TOPIC = '~/replies/callers'


class RosServerLink:
    """
    A ServerLink. Built by the thread that builds the node; `run` is the body of a thread, which
    `wake` ends together with `stop`.
    """

    def __init__(
        self,
        node: Node,
        server: str,
        *,
        lifespan_s: float,
        stop: threading.Event,
        make_path: MakePath | None = None,
    ) -> None:
        """`make_path` makes the local path to a server of this host; None: without."""
        self.server, self._make_path = server, make_path
        self._client = SessionClient(
            node, server, lifespan_s=lifespan_s, stop=stop, for_fleet=True
        )
        self._topic = node.resolve_topic_name(REPLY_TOPIC)
        self._subscriptions = DedicatedSubscriptions(node, ActionChunk, {}, qos.ACTION_CHUNK)
        self.wake = self._subscriptions.wake
        self.send = self._client.send
        self.announce = self._client.announce
        self.status = self._client.status
        self.open = self._client.open
        self.close_session = self._client.close

    def listen(self, callbacks: LinkCallbacks) -> None:
        """Subscribe to the replies, before `run`."""
        if self._make_path:

            def on_gone(is_lost: bool) -> None:
                callbacks.on_presence(Presence.LOST if is_lost else Presence.CLOSED)

            self._client.local = self._make_path(callbacks.on_chunk, on_gone)
        add = self._subscriptions.add
        add(REPLY_TOPIC, qos.ACTION_CHUNK, callbacks.on_chunk)
        add(f'{self.server}/{NO_SESSION_TOPIC}', qos.NO_SESSION, callbacks.on_no_session)

        def on_liveliness(now: LivelinessStatus) -> None:
            callbacks.on_presence(presence_of(now))

        self._subscriptions.watch_liveliness(REPLY_TOPIC, on_liveliness)

    def run(self, stop: threading.Event) -> None:
        """Dispatch messages until `stop` is set and `wake` was called."""
        self._subscriptions.run(stop)

    def reply_topic(self, session_epoch: int) -> str:
        """Return the full name of the reply topic, the same for each session."""
        return self._topic

    def wait_until_matched(self, timeout_s: float) -> bool:
        """Wait until requests and replies pass; return False after the timeout."""
        return self._client.wait_until_matched(
            lambda: self._subscriptions.publisher_count(REPLY_TOPIC), timeout_s
        )

    def close(self) -> None:
        """Destroy all endpoints; call it once `run` has returned and no other thread calls."""
        self._subscriptions.close()
        self._client.destroy_endpoints()


def presence_of(now: LivelinessStatus) -> Presence:
    """Return what a change of the writers of the reply topic means."""
    if now.alive:
        return Presence.THERE
    return Presence.LOST if now.not_alive_change > 0 else Presence.CLOSED
