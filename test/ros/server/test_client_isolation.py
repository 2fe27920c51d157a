# SPDX-License-Identifier: Apache-2.0
"""
The promise of one server for many robots: nothing of one robot reaches another.

A policy whose processors remember the last state and add it to every action is served to eight
robots at once, and then to each of them alone, the policy loaded again for each. The chunks are
the same bytes. One process: to import LeRobot takes seconds.
"""

from __future__ import annotations

from functools import partial
import os
from pathlib import Path

import numpy as np
import pytest
from support.nodes.server_rig import LOADING_LIMIT_S, ServerRig
from support.nodes.small_client import SmallClient
from support.paths import PLUGINS

from benchmarks.harness.processes import node_processes
from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.contract.schema import Codec, Status

tiny_policies = pytest.importorskip(
    'support.policies.tiny_policies', reason='needs torch and LeRobot (TORCH=none leaves both out)'
)
ROBOTS, ROUNDS, JOINTS = 8, 5, 6
NAMES = tuple(f'joint_{i}.pos' for i in range(JOINTS))
CAMERAS = tuple(f'observation.images.{name}' for name in tiny_policies.CAMERAS['act'])
PLUGIN = PLUGINS / 'relative'


@pytest.fixture
def policy(tmp_path) -> Path:
    return tiny_policies.relative(tiny_policies.build('act', tmp_path / 'relative'))


@pytest.fixture
def server(fork_server, node, tmp_path, steering, policy):
    """A server of the policy."""
    path = os.pathsep.join([str(PLUGIN), os.environ.get('PYTHONPATH', '')])
    environment = {**os.environ, 'PYTHONPATH': path}
    with node_processes(tmp_path, environment, fork_server.start) as started:
        rig = ServerRig(node, started, steering)
        rig.start(
            'unconfigured',
            policy_kind='relative',
            policy_path=policy,
            state_names=listed(NAMES),
            action_names=listed(NAMES),
            trained_fps=30.0,
            cpu_threads=1,
        )
        rig.wait(partial(is_active, rig), f'{rig.name} serves', LOADING_LIMIT_S)
        yield rig


def is_active(rig: ServerRig) -> bool:
    return rig.state() == 'active'


def load_again(rig: ServerRig) -> None:
    """Let the server load its policy from its folder, as a server that starts does."""
    for transition in ('deactivate', 'cleanup'):
        assert rig.change_state(transition)
    assert rig.change_state('configure', LOADING_LIMIT_S), rig.status().text
    assert rig.change_state('activate')


def listed(names: tuple[str, ...]) -> str:
    return '[' + ', '.join(f"'{name}'" for name in names) + ']'


def robot(rig: ServerRig, number: int) -> SmallClient:
    return rig.client(
        f'robot_{number}',
        session_epoch=number + 1,
        cameras=tuple(CameraSpec(name) for name in CAMERAS),
    )


def request(client: SmallClient, number: int, turn: int) -> Observation:
    """Return what this robot senses in this turn: it and nobody else, the same in each run."""
    draw = np.random.default_rng([number, turn])
    frames = {name: draw.integers(0, 256, (48, 64, 3), np.uint8) for name in CAMERAS}
    return client.observation(
        state=draw.normal(size=(1, JOINTS)).astype(np.float32),
        images=tuple(image_codec.encode(n, frame, Codec.RAW) for n, frame in frames.items()),
    )


def content(chunk: Chunk) -> tuple[bytes, bytes]:
    assert chunk.status == Status.OK, chunk.status_text
    return chunk.model.tobytes(), chunk.robot.tobytes()


@pytest.mark.slow
def test_eight_robots_at_one_server_get_what_each_gets_alone(server):
    together: list[list[tuple[bytes, bytes]]] = [[] for _ in range(ROBOTS)]
    clients = [robot(server, number) for number in range(ROBOTS)]
    for turn in range(ROUNDS):
        # in another order each time
        for number in np.random.default_rng(turn).permutation(ROBOTS):
            observation = request(clients[number], number, turn)
            clients[number].send(wire_observation.encode(observation))
        for number, client in enumerate(clients):
            together[number].append(content(client.take(60.0)))
    for client in clients:
        assert client.close().closed

    for number in range(ROBOTS):
        load_again(server)
        client = robot(server, number)
        for turn in range(ROUNDS):
            client.send(wire_observation.encode(request(client, number, turn)))
            assert content(client.take(60.0)) == together[number][turn], (number, turn)
        assert client.close().closed
    # they were as many different answers
    assert len({chunk for chunks in together for chunk in chunks}) == ROBOTS * ROUNDS
