# SPDX-License-Identifier: Apache-2.0
"""
A router's client of a policy in shadow, and of replicas that are asked once more for a second
draw. What they answer arrives on topics of its own, best effort and no faster than it can be used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import threading
import time
from typing import Any

from rclpy.node import Node

from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_client import SessionClient
from lerobot_serve.ros.topics.dedicated_subscription import DedicatedSubscriptions
from lerobot_serve.router.ros.replica_clients import ReplicaClient
from lerobot_serve.wire.session import ServerUnreachable, SessionRequest
from lerobot_serve_interfaces.msg import ActionChunk

OnReply = Callable[[bytes], None]

TOPICS = {'shadow': '~/replies/shadow', 'again': '~/replies/second_draw'}
# a flood of messages gets the interpreter no more often than this
PAUSE_S = 0.0005
MATCH_TIMEOUT_S = 1.0


class ShadowSession:
    """Sessions whose answers arrive on one of the topics; the shadow thread's."""

    def __init__(
        self,
        client: SessionClient,
        topic: str,
        send: Callable[[bytes], None],
        publisher_count: Callable[[], int],
    ) -> None:
        self._client, self._topic = client, topic
        self.send, self._publisher_count = send, publisher_count

    def open(self, ask: SessionRequest, timeout_s: float) -> Any:
        """Return the reply of an open session. Raises Refused and Unreachable."""
        reply = self._client.open(replace(ask, reply_topic=self._topic), timeout_s)
        if not self._client.wait_until_matched(self._publisher_count, MATCH_TIMEOUT_S):
            raise ServerUnreachable(f'the topics of {self._client.server} were not found')
        return reply

    def close(self, ask: SessionRequest, timeout_s: float) -> None:
        """End a session. Raises Unreachable."""
        self._client.close(ask, timeout_s)


class ShadowClients:
    """Built and closed by the thread of a transition; `run` is the body of a thread."""

    def __init__(
        self,
        node: Node,
        server: str,
        replicas: dict[str, ReplicaClient],
        *,
        lifespan_s: float,
        stop: threading.Event,
    ) -> None:
        self._client = SessionClient(
            node, server, lifespan_s=lifespan_s, stop=stop, for_fleet=True, shadow=True
        )
        self._lanes = DedicatedSubscriptions(node, ActionChunk, {}, qos.SHADOW_REPLIES)
        self.shadow = self._asking(node, 'shadow', self._client, self._client.send_shadow)
        self.again = {
            name: self._asking(node, 'again', client, client.send)
            for name, client in replicas.items()
        }

    def _asking(
        self, node: Node, name: str, client: SessionClient, send: Callable[[bytes], None]
    ) -> ShadowSession:
        topic = TOPICS[name]
        full = node.resolve_topic_name(topic)
        return ShadowSession(client, full, send, lambda: self._lanes.publisher_count(topic))

    def listen(self, on_chunk: OnReply, on_again: OnReply) -> None:
        """Subscribe to all replies, before `run`."""
        self._lanes.add(TOPICS['shadow'], qos.SHADOW_REPLIES, rate_limited(on_chunk))
        self._lanes.add(TOPICS['again'], qos.SHADOW_REPLIES, rate_limited(on_again))

    def run(self, stop: threading.Event) -> None:
        """Hand over answers until `stop` is set and `wake` was called."""
        self._lanes.run(stop)

    def wake(self) -> None:
        self._lanes.wake()

    def close(self) -> None:
        """Destroy all endpoints; `run` has returned."""
        self._lanes.close()
        self._client.destroy_endpoints()


def rate_limited(deposit: OnReply) -> OnReply:
    """Return `deposit` with a pause behind each message; what comes faster is lost in DDS."""

    def act(raw: bytes) -> None:
        deposit(raw)
        time.sleep(PAUSE_S)

    return act
