# SPDX-License-Identifier: Apache-2.0
"""
Copies of what passes on the local path of a node, on topics, for recorders: nothing is published
that nobody subscribes to. Threads as in local.endpoint; the executor looks for subscribers.
"""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.reply_publishers import NO_EVENTS
from lerobot_serve_interfaces.msg import ActionChunk, Observation

REQUESTS, CHUNKS = '~/local/observation', '~/local/action_chunk'
# to routers and gateways, whose reply topics have the same word: no robot executes them as such
RELAYED, RELAYED_CHUNKS = '/replies/', '~/local/replies/action_chunk'
LOOK_PERIOD_S, LIFESPAN_S = 0.5, 3.0


class LocalCopies:
    """See the module. Built by the thread that builds the node."""

    def __init__(self, node: Node) -> None:
        self._requests = node.create_publisher(
            Observation,
            REQUESTS,
            qos.observation_writer(LIFESPAN_S, for_fleet=True),
            event_callbacks=NO_EVENTS,
        )
        self._chunks, self._relayed = (
            node.create_publisher(ActionChunk, name, qos.ACTION_CHUNK, event_callbacks=NO_EVENTS)
            for name in (CHUNKS, RELAYED_CHUNKS)
        )
        # a look at each message would cost as much as the path
        self._has_requests = self._has_chunks = self._has_relayed = False
        node.create_timer(LOOK_PERIOD_S, self._look)

    def _look(self) -> None:
        self._has_requests, self._has_chunks, self._has_relayed = (
            each.get_subscription_count() > 0
            for each in (self._requests, self._chunks, self._relayed)
        )

    def after(self, on_request: Callable[[Raw], None]) -> Callable[[Raw], None]:
        """Return what also copies each request, once it was passed on."""

        def on_copied_request(raw: Raw) -> None:
            on_request(raw)
            if self._has_requests:
                self._requests.publish(bytes(raw))

        return on_copied_request

    def chunk(self, topic: str, raw: bytes) -> None:
        """Copy a chunk that was sent to the client of a reply topic."""
        if RELAYED in topic:
            if self._has_relayed:
                self._relayed.publish(raw)
        elif self._has_chunks:
            self._chunks.publish(raw)
