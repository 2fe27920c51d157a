# SPDX-License-Identifier: Apache-2.0
"""An edge controller whose server wants to look back, with a simulated robot."""

from __future__ import annotations

import numpy as np
import pytest
from support.nodes.fake_server import FakeServer

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.observation import Observation

ROBOT = '/robot_1'
CAMERAS = ('observation.images.front', 'observation.images.wrist')
# the arm goes to and fro
CHUNK = np.repeat(np.concatenate([np.linspace(0, 1, 15), np.linspace(1, 0, 15)])[:, None], 6, 1)


def moved(request: Observation) -> bool:
    """Tell whether all three observations show the arm in another position."""
    return bool((np.abs(np.diff(request.state, axis=0)).max(axis=1) > 0.01).all())


@pytest.fixture
def server(node) -> FakeServer:
    """Asks for 3 observations, 2 control steps apart, and moves the arm."""
    looking_back = {'observation_steps': 3, 'observation_stride_steps': 2}
    edge = f'{ROBOT}/edge_controller'
    return FakeServer(
        node, '/server', edge, lambda _: CHUNK, chunk_size=len(CHUNK), **looking_back
    )


def test_every_request_brings_its_past(processes, server, wait_until):
    processes.start('edge', 'edge_controller', namespace=ROBOT, servers=['/server'])
    processes.start('sim', 'sim_robot', namespace=ROBOT, image_height=48, image_width=64)
    wait_until(lambda: any(map(moved, server.received)), 'the past differs from the present')
    for request in server.received:
        assert request.state.shape == (3, 6)
        seen = [(image.name, image.steps_back) for image in request.images]
        assert seen == [(name, back) for back in (4, 2, 0) for name in CAMERAS]
        assert {image_codec.decode(image).shape for image in request.images} == {(48, 64, 3)}
