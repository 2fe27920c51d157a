# SPDX-License-Identifier: Apache-2.0
"""A policy server inside the test: it remembers what it was asked and answers as it is told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rclpy.node import Node

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import ActionChunk
from lerobot_serve_interfaces.msg import Observation as ObservationMessage
from lerobot_serve_interfaces.srv import OpenSession


class FakeServer:
    """Opens every session with what is in `reply`. Everything happens in the executor's thread."""

    def __init__(
        self,
        node: Node,
        name: str,
        edge: str,
        chunk: Callable[[Observation], np.ndarray | None],
        **reply: object,
    ) -> None:
        """`chunk` returns the actions that answer a request, None for no answer at all."""
        self.received: list[Observation] = []
        self._chunk, self._reply = chunk, reply
        self._replies = node.create_publisher(
            ActionChunk, f'{edge}/action_chunk', qos.ACTION_CHUNK
        )
        node.create_subscription(
            ObservationMessage,
            f'{name}/observation',
            self._on_request,
            qos.OBSERVATION_READER,
            raw=True,
        )
        node.create_service(OpenSession, f'{name}/open_session', self._on_open)

    def _on_open(
        self, request: OpenSession.Request, response: OpenSession.Response
    ) -> OpenSession.Response:
        response.accepted, response.schema_version = True, request.schema_version
        response.chunk_size = response.observation_steps = response.observation_stride_steps = 1
        for name, value in self._reply.items():
            setattr(response, name, value)
        return response

    def _on_request(self, raw: bytes) -> None:
        request = wire_observation.decode(raw)
        self.received.append(request)
        actions = self._chunk(request)
        if actions is not None:
            self._replies.publish(reply_bytes(request, actions))
