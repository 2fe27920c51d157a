# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's policies over real topics: one server that is given one kind after the other.

That each chunk equals LeRobot's own is tested without ROS; here it is that what a policy needs is
told to the robot, that what the robot sends reaches the policy, and that a policy makes room.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.nodes.server_rig import LOADING_LIMIT_S
from support.nodes.small_client import JOINTS
from support.replacing import replace

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.contract.schema import Codec, Flag, StateClass, Status

tiny_policies = pytest.importorskip(
    'support.policies.tiny_policies', reason='needs torch and LeRobot (TORCH=none leaves both out)'
)
HISTORY = StateClass.NEEDS_HISTORY
# kind, class of state, observations a request, rows of a chunk, whether a prefix guides
KINDS = [
    ('act', StateClass.CHUNK_STATELESS, 1, 16, False),
    ('diffusion', HISTORY, 2, 4, False),
    ('vqbet', HISTORY, 3, 4, False),
    ('tdmpc', StateClass.RECURRENT, 1, 5, False),
    ('smolvla', StateClass.CHUNK_STATELESS, 1, 16, True),
]


def names_as_parameter() -> dict[str, object]:
    return {'state_names': list(JOINTS), 'action_names': list(JOINTS), 'trained_fps': 30.0}


def observed(client, described, turn: int, **changes: object):
    """Return a request with as many observations as the server asked for."""
    draw = np.random.default_rng(turn)
    steps, stride = described.observation_steps, described.observation_stride_steps
    pictures: list[Image] = []
    for camera in described.cameras:
        for step in range(steps):
            shape = (camera.height, camera.width, camera.channels)
            frame = draw.integers(0, 256, shape, np.uint8)
            image = image_codec.encode(camera.name, frame, Codec.RAW)
            pictures.append(replace(image, steps_back=step * stride))
    state = draw.normal(size=(steps, len(JOINTS))).astype(np.float32)
    return client.observation(state=state, images=tuple(pictures), **changes)


@pytest.mark.slow
def test_each_kind_is_served_after_the_other_by_one_server(rig, tmp_path):
    rig.start('unconfigured', autostart=False, policy_kind='lerobot', policy_root=str(tmp_path))
    for kind, state_class, steps, rows, guided in KINDS:
        folder = tiny_policies.build(kind, tmp_path / kind)
        assert rig.set(policy_path=str(folder), **names_as_parameter()) == ''
        assert rig.change_state('configure', LOADING_LIMIT_S), rig.status().text
        assert rig.change_state('activate')
        described = rig.describe()
        assert described.status.policy.startswith(f'{kind}@')
        assert (described.status.state_class, described.chunk_size) == (state_class, rows)
        assert (described.observation_steps, described.supports_rtc) == (steps, guided)
        serve_two_robots(rig, described, kind, guided)
        assert rig.change_state('deactivate')
        assert rig.change_state('cleanup')
    assert rig.status().policy == ''


def serve_two_robots(rig, described, kind: str, guided: bool) -> None:
    cameras = tuple(CameraSpec(c.name, c.height, c.width) for c in described.cameras)
    robots = [
        rig.client(f'{kind}_{number}', session_epoch=number + 1, cameras=cameras, wants_rtc=guided)
        for number in range(2)
    ]
    last = {}
    for turn in range(3):
        for number, client in enumerate(robots):
            chunk = ask(client, observed(client, described, 2 * turn + number))
            assert chunk.status == Status.OK, chunk.status_text
            assert chunk.robot.shape == (described.chunk_size, len(JOINTS))
            assert (chunk.seed == 0) == (kind == 'act')
            lost = kind == 'tdmpc' and turn == 0
            assert bool(chunk.header.flags & Flag.STATE_LOST) == lost
            last[number] = chunk
    assert not np.array_equal(last[0].robot, last[1].robot)
    check_prefixes(robots[0], described, last[0], guided)
    for client in robots:
        assert client.close().closed


def check_prefixes(client, described, last, guided: bool) -> None:
    """A prefix guides where there is RTC; one of another policy never does, and that is said."""
    prefix = {'prefix_model': last.model[4:], 'prefix_robot': last.robot[4:]}
    if not len(prefix['prefix_model']):
        return
    for policy, ignored in ((described.status.policy, not guided), ('other@0', True)):
        request = observed(client, described, 9, prefix_policy=policy, **prefix)
        chunk = ask(client, replace(request, inference_delay_steps=2))
        assert chunk.status == Status.OK, chunk.status_text
        assert bool(chunk.header.flags & Flag.PREFIX_IGNORED) == ignored


def ask(client, request):
    client.send(wire_observation.encode(request))
    return client.take(60.0)
