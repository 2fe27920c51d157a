# SPDX-License-Identifier: Apache-2.0
"""Goals of the action PredictChunk, asked one by one."""

from __future__ import annotations

from action_msgs.msg import GoalStatus
import numpy as np
from rclpy.serialization import deserialize_message

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.observation import Observation as WireObservation
from lerobot_serve.contract.schema import Status
from lerobot_serve_interfaces.msg import Observation
from support.nodes.server_rig import ServerRig

STATE = np.linspace(-1, 1, 6, dtype=np.float32)
SUCCEEDED, ABORTED = GoalStatus.STATUS_SUCCEEDED, GoalStatus.STATUS_ABORTED
CANCELED = GoalStatus.STATUS_CANCELED


def asking(episode_id: str = '', state: np.ndarray = STATE, task: str = '') -> Observation:
    return Observation(episode_id=episode_id, observation_steps=1, state=state.tolist(), task=task)


def message_from_observation(observation: WireObservation) -> Observation:
    """Return the typed message."""
    return deserialize_message(wire_observation.encode(observation), Observation)


def first_row(chunk) -> np.ndarray:
    return np.reshape(chunk.chunk_robot.data, (chunk.chunk_robot.rows, -1))[0]


def answered(caller: ServerRig, episode_id: str = '', **more: object):
    """Return a chunk that came and holds actions."""
    status, chunk = caller.predict(asking(episode_id, **more)).result()
    assert (status, chunk.status, chunk.status_text) == (SUCCEEDED, Status.OK, '')
    return chunk


def refused(caller: ServerRig, episode_id: str = '', **more: object):
    """Return the chunk of a goal that was aborted."""
    status, chunk = caller.predict(asking(episode_id, **more)).result()
    assert status == ABORTED
    assert not chunk.chunk_robot.data
    return chunk
