"""An edge controller whose server wants to look back, with a simulated robot."""

from __future__ import annotations

import numpy as np
import pytest

from lerobot_serve.edge.fake_link import answer
from lerobot_serve.ros import qos
from lerobot_serve.wire import images
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.observation import Observation
from lerobot_serve_interfaces.msg import ActionChunk
from lerobot_serve_interfaces.msg import Observation as ObservationMessage
from lerobot_serve_interfaces.srv import OpenSession

ROBOT = '/robot_1'
CAMERAS = ('observation.images.front', 'observation.images.wrist')
# the arm goes to and fro
CHUNK = np.repeat(np.concatenate([np.linspace(0, 1, 15), np.linspace(1, 0, 15)])[:, None], 6, 1)


class LookingBack:
    """A server that asks for 3 observations, 2 control steps apart, and moves the arm."""

    def __init__(self, node) -> None:
        self.received: list[Observation] = []
        self._replies = node.create_publisher(
            ActionChunk, f'{ROBOT}/edge_controller/action_chunk', qos.ACTION_CHUNK
        )
        node.create_subscription(
            ObservationMessage,
            '/server/observation',
            self._on_request,
            qos.OBSERVATION_INBOX,
            raw=True,
        )
        node.create_service(OpenSession, '/server/open_session', self._on_open)

    def _on_open(
        self, request: OpenSession.Request, response: OpenSession.Response
    ) -> OpenSession.Response:
        response.accepted, response.schema_version = True, request.schema_version
        response.chunk_size = len(CHUNK)
        response.observation_steps, response.observation_stride_steps = 3, 2
        return response

    def _on_request(self, raw: bytes) -> None:
        request = wire_observation.decode(raw)
        self.received.append(request)
        self._replies.publish(answer(request, CHUNK))


def moved(request: Observation) -> bool:
    """Tell whether all three observations show the arm in another position."""
    return bool((np.abs(np.diff(request.state, axis=0)).max(axis=1) > 0.01).all())


@pytest.fixture
def server(node) -> LookingBack:
    return LookingBack(node)


def test_every_request_brings_its_past(processes, server, wait_until):
    processes.start('edge', 'edge_controller', namespace=ROBOT, server='/server')
    processes.start('sim', 'sim_robot', namespace=ROBOT, image_height=48, image_width=64)
    wait_until(lambda: any(map(moved, server.received)), 'the past differs from the present')
    for request in server.received:
        assert request.state.shape == (3, 6)
        seen = [(image.name, image.steps_back) for image in request.images]
        assert seen == [(name, back) for back in (4, 2, 0) for name in CAMERAS]
        assert {images.decode(image).shape for image in request.images} == {(48, 64, 3)}
