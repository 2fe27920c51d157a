# SPDX-License-Identifier: Apache-2.0
"""
Clients of the policy in shadow, and of replicas for second draws. Their replies arrive on separate
topics, best effort and rate limited.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rclpy.node import Node

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.records import OpenSessionRequest, OpenSessionResponse
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_client import SessionClient
from lerobot_serve.ros.subscriptions import DedicatedSubscriptions
from lerobot_serve.router.ros.replica_clients import ReplicaClient
from lerobot_serve_interfaces.msg import ActionChunk

if TYPE_CHECKING:
    from lerobot_serve.zenoh.session_client import QueuedSessionClient

OnReply = Callable[[bytes], None]

TOPICS = {'shadow': '~/replies/shadow', 'second_draw': '~/replies/second_draw'}
# pause after each message: a flood of messages must not occupy the interpreter
PAUSE_S = 0.0005
MATCH_TIMEOUT_S = 1.0


class ShadowSession:
    """Sessions at a server whose replies arrive for one purpose. The thread `shadow`."""

    def __init__(
        self,
        client: SessionClient | QueuedSessionClient,
        send: Callable[[Raw], None],
        reply_topic: Callable[[OpenSessionRequest], str],
        is_matched: Callable[[float], bool],
        unmatched_text: str,
    ) -> None:
        """`is_matched` waits until client and server are connected, up to a time in seconds."""
        self._client, self.send, self._reply_topic = client, send, reply_topic
        self._is_matched, self._unmatched_text = is_matched, unmatched_text

    def open(self, session_request: OpenSessionRequest, timeout_s: float) -> OpenSessionResponse:
        """Open a session and return the reply. Raises SessionRefused and ServerUnreachable."""
        topic = self._reply_topic(session_request)
        request = replace(session_request, reply_topic=topic)
        # the local path of a replica carries the replies to robots
        reply = self._client.open(request, timeout_s, locally=False)
        if not self._is_matched(MATCH_TIMEOUT_S):
            raise ServerUnreachable(self._unmatched_text)
        return reply

    def close(self, session_request: OpenSessionRequest, timeout_s: float) -> None:
        """Close a session. Raises ServerUnreachable."""
        self._client.close(session_request, timeout_s)


class ShadowClients:
    """Created and closed by the thread of a transition; `run` is the body of a thread."""

    def __init__(
        self,
        node: Node,
        server: str,
        replicas: dict[str, ReplicaClient],
        *,
        lifespan_s: float,
        stop: threading.Event,
    ) -> None:
        """`server` is empty when the policy in shadow is reached over the other link."""
        self._subscriptions = DedicatedSubscriptions(node, ActionChunk, {}, qos.SHADOW_REPLIES)
        self._client: SessionClient | None = None
        self.shadow: ShadowSession | None = None
        if server:
            self._client = client = SessionClient(
                node, server, lifespan_s=lifespan_s, stop=stop, for_fleet=True, shadow=True
            )
            self.shadow = self._make_session(node, 'shadow', client, client.send_shadow)
        self.second_draws = {
            name: self._make_session(node, 'second_draw', client, client.send)
            for name, client in replicas.items()
        }

    def _make_session(
        self, node: Node, name: str, client: SessionClient, send: Callable[[Raw], None]
    ) -> ShadowSession:
        topic = TOPICS[name]
        full = node.resolve_topic_name(topic)
        publisher_count = partial(self._subscriptions.publisher_count, topic)
        return ShadowSession(
            client,
            send,
            lambda _: full,
            partial(client.wait_until_matched, publisher_count),
            f'the topics of {client.server} were not found',
        )

    def listen(self, on_chunk: OnReply, on_second_draw: OnReply) -> None:
        """Subscribe to all replies, before `run`."""
        self._subscriptions.add(TOPICS['shadow'], qos.SHADOW_REPLIES, rate_limited(on_chunk))
        self._subscriptions.add(
            TOPICS['second_draw'], qos.SHADOW_REPLIES, rate_limited(on_second_draw)
        )

    def run(self, stop: threading.Event) -> None:
        """Deliver replies until `stop` is set and `wake` is called."""
        self._subscriptions.run(stop)

    def wake(self) -> None:
        self._subscriptions.wake()

    def close(self) -> None:
        """Destroy all endpoints; `run` has returned."""
        self._subscriptions.close()
        if self._client:
            self._client.destroy_endpoints()


def rate_limited(deposit: OnReply) -> OnReply:
    """Return `deposit` with a pause after each message; DDS drops messages that arrive faster."""

    def deposit_and_pause(raw: bytes) -> None:
        deposit(raw)
        time.sleep(PAUSE_S)

    return deposit_and_pause
