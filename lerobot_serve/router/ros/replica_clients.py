# SPDX-License-Identifier: Apache-2.0
"""
The clients of policy servers. Each server replies on a topic of its own, which identifies it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
import threading

from rclpy.exceptions import InvalidHandle
from rclpy.node import Node
from rclpy.subscription import Subscription

from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_client import SessionClient
from lerobot_serve.ros.topics.dedicated_subscription import (
    DedicatedSubscriptions,
    LivelinessStatus,
)
from lerobot_serve.wire.names import ros_token
from lerobot_serve.wire.session import SessionRequest
from lerobot_serve_interfaces.msg import ActionChunk, ServerStatus

OnReply = Callable[[str, bytes], None]
OnStatus = Callable[[str, ServerStatus], None]


class ReplicaClient(SessionClient):
    """A client of one server; `topic` is where it answers. See SessionClient for threads."""

    topic = ''
    publisher_count: Callable[[], int] = staticmethod(int)

    def session_request_for(self, ask: SessionRequest) -> SessionRequest:
        """Return a robot's ask as the router puts it to this server."""
        return replace(ask, reply_topic=self.topic)

    def is_matched(self, timeout_s: float) -> bool:
        """Wait until the request and reply topics are matched."""
        return self.wait_until_matched(self.publisher_count, timeout_s)


class ReplicaClients:
    """Built and closed by the thread of a transition; `run` is the body of a thread."""

    def __init__(
        self,
        node: Node,
        servers: tuple[str, ...],
        *,
        lifespan_s: float,
        stop: threading.Event,
        shadow: str = '',
    ) -> None:
        self._node = node
        self.clients = {
            server: ReplicaClient(
                node,
                server,
                lifespan_s=lifespan_s,
                stop=stop,
                for_fleet=True,
                shadow=server == shadow,
            )
            for server in servers
        }
        self._lanes = DedicatedSubscriptions(node, ActionChunk, {}, qos.ACTION_CHUNK)
        # servers whose writer of answers let its lease run out, and has not come back
        self._silent: dict[str, bool] = {}
        self._statuses: list[Subscription] = []

    def listen(self, on_answer: OnReply, on_status: OnStatus) -> None:
        """Subscribe to replies and status of all servers, before `run`."""
        for server, client in self.clients.items():
            topic = f'~/replies/{ros_token(server)}'
            self._lanes.add(topic, qos.ACTION_CHUNK, partial(on_answer, server))
            self._lanes.watch_liveliness(topic, partial(self._on_liveliness, server))
            client.topic = self._node.resolve_topic_name(topic)
            client.publisher_count = partial(self._lanes.publisher_count, topic)
            subscription = self._node.create_subscription(
                ServerStatus, f'{server}/status', partial(on_status, server), qos.STATE
            )
            self._statuses.append(subscription)

    def run(self, stop: threading.Event) -> None:
        """Hand over answers until `stop` is set and `wake` was called."""
        self._lanes.run(stop)

    def wake(self) -> None:
        self._lanes.wake()

    def _on_liveliness(self, server: str, now: LivelinessStatus) -> None:
        self._silent[server] = now.alive == 0 and now.not_alive > 0

    def is_silent(self, server: str) -> bool:
        """Return whether it was killed, stopped or cut off: its lease ran out."""
        return self._silent.get(server, False)

    def is_there(self, server: str) -> bool:
        """Return whether it offers its services and is not silent; False after `close`."""
        try:
            return self.clients[server].is_available() and not self.is_silent(server)
        except InvalidHandle:
            return False

    def close(self) -> None:
        """Destroy all endpoints; `run` has returned."""
        for subscription in self._statuses:
            self._node.destroy_subscription(subscription)
        self._lanes.close()
        for client in self.clients.values():
            client.destroy_endpoints()
