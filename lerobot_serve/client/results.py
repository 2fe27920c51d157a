# SPDX-License-Identifier: Apache-2.0
"""What calls of the client return. Any thread."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.records import CameraSpec, GetStatusResponse, OpenSessionResponse

# said in each session: the actions go where the caller sends them
NO_CAGE = (
    'this caller has no safety cage and no fallback ladder: only an edge_controller has them; '
    'use it in simulators and notebooks, not for a real robot'
)


class Timings(Struct, frozen=True):
    """
    Durations of one prediction [ms]. `round_trip` is from sending to the reply, measured here;
    `queue_wait`, `processing` and `inference` are those of the server; `network` is the rest.
    """

    round_trip_ms: float
    queue_wait_ms: float
    processing_ms: float
    inference_ms: float

    @property
    def network_ms(self) -> float:
        server_ms = self.queue_wait_ms + self.processing_ms + self.inference_ms
        return max(0.0, self.round_trip_ms - server_ms)


class Prediction(Struct, frozen=True, eq=False):
    """
    One chunk of actions: steps x names, in the units of the robot, finite and writable.

    policy          id of the policy that answered; `fingerprint` is id@hash
    slot            where a router placed the episode: prod, a or b
    policy_changed  another policy than the one before answered: do not blend the two chunks
    superseded      requests of this session that a newer one replaced, counted by the server
    """

    actions: Float32Array
    slot: str
    policy: str
    fingerprint: str
    policy_changed: bool
    timings: Timings
    sequence: int
    episode_id: str
    superseded: int = 0

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """What is served: names in order, cameras, and the control rate of the training data."""

    policy: str
    policy_type: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[CameraSpec, ...]
    chunk_steps: int
    control_hz: float
    observation_steps: int
    default_task: str
    task_pinned: bool
    server_text: str

    @property
    def camera_names(self) -> tuple[str, ...]:
        return tuple(camera.name for camera in self.cameras)


def policy_info(reply: GetStatusResponse) -> PolicyInfo:
    """Return what a server says of its policy."""
    return PolicyInfo(
        policy=reply.status.policy,
        policy_type=reply.status.policy_type,
        state_names=reply.state_names,
        action_names=reply.action_names,
        cameras=reply.cameras,
        chunk_steps=reply.chunk_size,
        control_hz=reply.trained_fps,
        observation_steps=reply.observation_steps,
        default_task=reply.default_task,
        task_pinned=reply.task_pinned,
        server_text=reply.status.text,
    )


class GatewayAgreement(OpenSessionResponse, frozen=True):
    """What was agreed with a gateway; `client_id` is the name of the session at the router."""

    client_id: str = ''
