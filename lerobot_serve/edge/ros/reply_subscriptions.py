# SPDX-License-Identifier: Apache-2.0
"""
Subscriptions to replies of servers: chunks, writer liveliness, and notices of unknown sessions.
One chunk topic per server, so that a lost writer is a lost server.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading

from rclpy.node import Node

from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_messages import NO_SESSION_TOPIC
from lerobot_serve.ros.topics.dedicated_subscription import (
    DedicatedSubscriptions,
    LivelinessStatus,
    OnMessage,
)
from lerobot_serve_interfaces.msg import ActionChunk

REPLY_TOPIC = '~/action_chunk'


class ReplySubscriptions:
    """
    Built by the thread that builds the node; `run` is the body of a thread, which `wake` ends
    together with `stop`. `on_liveliness` receives the server name.
    """

    def __init__(
        self,
        node: Node,
        servers: tuple[str, ...],
        *,
        on_chunk: OnMessage,
        on_no_session: OnMessage,
        on_liveliness: Callable[[str, LivelinessStatus], None],
    ) -> None:
        self._lanes = DedicatedSubscriptions(node, ActionChunk, {}, qos.ACTION_CHUNK)
        self._topics = dict(zip(servers, _topics(len(servers)), strict=True))
        self._names = {s: node.resolve_topic_name(topic) for s, topic in self._topics.items()}
        for server, topic in self._topics.items():
            self._lanes.add(topic, qos.ACTION_CHUNK, on_chunk)
            self._lanes.watch_liveliness(topic, partial(on_liveliness, server))
            self._lanes.add(f'{server}/{NO_SESSION_TOPIC}', qos.NO_SESSION, on_no_session)

    def topic(self, server: str) -> str:
        """Return the full name of the reply topic of this server."""
        return self._names[server]

    def publisher_count(self, server: str) -> int:
        """
        Return how many writers of this server are connected, those without liveliness included.
        """
        return self._lanes.publisher_count(self._topics[server])

    def run(self, stop: threading.Event) -> None:
        """Dispatch messages until `stop` is set and `wake` was called."""
        self._lanes.run(stop)

    def wake(self) -> None:
        self._lanes.wake()

    def close(self) -> None:
        """Destroy the subscriptions; call it once `run` has returned."""
        self._lanes.close()


def _topics(count: int) -> list[str]:
    """Return the preferred server's topic, then a numbered one for each other server."""
    return [REPLY_TOPIC, *(f'{REPLY_TOPIC}_{number}' for number in range(2, count + 1))]
