# SPDX-License-Identifier: Apache-2.0
"""The topic for robots without a session, which have no reply topic: of a server or a router."""

from __future__ import annotations

from rclpy.node import Node

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.reply_publishers import NO_EVENTS
from lerobot_serve.ros.contract.session_messages import NO_SESSION_TOPIC
from lerobot_serve.ros.contract.zenoh_serving import ZenohServing
from lerobot_serve_interfaces.msg import ActionChunk


class NoSessionPublisher:
    """Publishes over both links. Any thread."""

    def __init__(self, node: Node, zenoh: ZenohServing | None) -> None:
        self._zenoh = zenoh
        self._publisher = node.create_publisher(
            ActionChunk, f'~/{NO_SESSION_TOPIC}', qos.NO_SESSION, event_callbacks=NO_EVENTS
        )

    def publish(self, chunk: Chunk) -> None:
        raw = wire_chunk.encode(chunk)
        self._publisher.publish(raw)
        if self._zenoh:
            self._zenoh.publish_no_session(chunk, raw)
