# SPDX-License-Identifier: Apache-2.0
"""
Clients of the policy servers. Each server replies on a separate topic, which identifies it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading

from msgspec.structs import replace
from rclpy.exceptions import InvalidHandle
from rclpy.node import Node
from rclpy.subscription import Subscription

from lerobot_serve.contract.names import ros_token
from lerobot_serve.contract.records import OpenSessionRequest, ServerStatus
from lerobot_serve.contract.services.messages import read
from lerobot_serve.local.path import MakePath
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_client import SessionClient
from lerobot_serve.ros.subscriptions import (
    DedicatedSubscriptions,
    LivelinessStatus,
)
from lerobot_serve_interfaces.msg import ActionChunk
from lerobot_serve_interfaces.msg import ServerStatus as ServerStatusMessage

MALFORMED_STATUS = 'malformed_status'
OnReply = Callable[[str, bytes], None]
OnStatus = Callable[[str, ServerStatus], None]


class ReplicaClient(SessionClient):
    """The client of one server, which replies on `topic`. See SessionClient for threads."""

    topic = ''
    publisher_count: Callable[[], int] = staticmethod(int)

    def session_request_for(self, session_request: OpenSessionRequest) -> OpenSessionRequest:
        """Return the session request of a robot with the reply topic of this server."""
        return replace(session_request, reply_topic=self.topic)

    def is_matched(self, timeout_s: float) -> bool:
        """Wait until the request and reply topics are matched."""
        return self.wait_until_matched(self.publisher_count, timeout_s)


class ReplicaClients:
    """Created and closed by the thread of a transition; `run` is the body of a thread."""

    def __init__(
        self,
        node: Node,
        servers: tuple[str, ...],
        *,
        lifespan_s: float,
        stop: threading.Event,
        shadow: str = '',
        on_drop: Callable[[str], None] = lambda _: None,
        make_path: MakePath | None = None,
    ) -> None:
        """`make_path` makes the local path to a server of this host; None: without."""
        self._node, self._on_drop, self._make_path = node, on_drop, make_path
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
        self._subscriptions = DedicatedSubscriptions(node, ActionChunk, {}, qos.ACTION_CHUNK)
        # server -> whether it is lost: the lease of its reply writer, or its end of the local path
        self._silent: dict[str, bool] = {}
        self._statuses: list[Subscription] = []

    def listen(self, on_reply: OnReply, on_status: OnStatus) -> None:
        """Subscribe to replies and status of all servers, before `run`."""
        for server, client in self.clients.items():
            topic = f'~/replies/{ros_token(server)}'
            self._subscriptions.add(topic, qos.ACTION_CHUNK, partial(on_reply, server))
            self._subscriptions.watch_liveliness(topic, partial(self._on_liveliness, server))
            client.topic = self._node.resolve_topic_name(topic)
            if self._make_path:
                on_gone = partial(self._silent.__setitem__, server)
                client.local = self._make_path(partial(on_reply, server), on_gone)
            client.publisher_count = partial(self._subscriptions.publisher_count, topic)
            subscription = self._node.create_subscription(
                ServerStatusMessage,
                f'{server}/status',
                partial(self._on_status, on_status, server),
                qos.STATE,
                raw=True,
            )
            self._statuses.append(subscription)

    def _on_status(self, on_status: OnStatus, server: str, raw: bytes) -> None:
        try:
            status = read(ServerStatus, raw)
        except ValueError:
            self._on_drop(MALFORMED_STATUS)
        else:
            self._silent.pop(server, None)
            on_status(server, status)

    def run(self, stop: threading.Event) -> None:
        """Deliver replies until `stop` is set and `wake` is called."""
        self._subscriptions.run(stop)

    def wake(self) -> None:
        self._subscriptions.wake()

    def _on_liveliness(self, server: str, now: LivelinessStatus) -> None:
        self._silent[server] = now.alive == 0 and now.not_alive > 0

    def is_silent(self, server: str) -> bool:
        """Return whether a server was killed, stopped or cut off."""
        return self._silent.get(server, False)

    def is_available(self, server: str) -> bool:
        """Return whether a server offers its services and is not silent; False after `close`."""
        try:
            return self.clients[server].is_available() and not self.is_silent(server)
        except InvalidHandle:
            return False

    def close(self) -> None:
        """Destroy all endpoints; `run` has returned."""
        for subscription in self._statuses:
            self._node.destroy_subscription(subscription)
        self._subscriptions.close()
        for client in self.clients.values():
            client.destroy_endpoints()
