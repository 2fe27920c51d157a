# SPDX-License-Identifier: Apache-2.0
"""
Check a decoded observation against its session and the policy (inference thread), and build the
texts and chunks of replies to what is refused (any thread).
"""

from __future__ import annotations

import hashlib

import numpy as np

from lerobot_serve.arrays import Float32Array, FrameArray, is_finite
from lerobot_serve.contract.cdr import encodable_text, Raw
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.data_path.message_parts import Image, NO_ACTIONS
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.image_codec import ImageCodecPool
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.policies.base import PolicyCamera, PolicyDescription, PolicyRequest
from lerobot_serve.server.sessions.session_table import Session


def error_chunk(
    raw: Raw,
    status: Status,
    text: str,
    *,
    slot: str = 'prod',
    policy: str = '',
    seed: int = 0,
    queue_wait_ms: float = 0.0,
    server_load: float = 0.0,
    superseded: int = 0,
) -> Chunk:
    """Return an error reply. Raises Malformed if `raw` is not a request."""
    header, client_id, episode_id = read_envelope(raw)
    return Chunk(
        header.for_reply(Flag.NONE),
        client_id,
        episode_id,
        status=status,
        status_text=encodable_text(text),
        slot=slot,
        policy=policy,
        seed=seed,
        queue_wait_ms=queue_wait_ms,
        server_load=server_load,
        superseded=superseded,
    )


def not_ready_chunk(raw: Raw, text: str) -> Chunk:
    """Return the reply of a server without an active policy."""
    return error_chunk(raw, Status.DRAINING, f'not ready: {text}')


def no_session_text(client_id: str, session_epoch: int) -> str:
    return f'{client_id!r} has no session of epoch {session_epoch}'


# largest image: this multiple of the policy's pixels, and at least a full HD frame; decoding a
# larger one would delay all other clients
MAX_PIXELS_RATIO, MIN_PIXELS_LIMIT = 4, 1920 * 1080


def make_policy_request(
    observation: Observation,
    session: Session,
    description: PolicyDescription,
    images: ImageCodecPool,
) -> tuple[PolicyRequest, bool]:
    """Return the policy request, and whether its prefix was ignored. Raises Malformed."""
    header = observation.header
    check_version(header.schema_version, session)
    check_state(observation.state, description)
    check_task(observation.task, session)
    prefixed = bool(observation.prefix_model.size or observation.prefix_robot.size)
    ours = (
        prefixed
        and observation.prefix_policy == description.fingerprint
        and description.supports_rtc
    )
    if ours:
        check_prefix(observation.prefix_model, description)
        check_prefix(observation.prefix_robot, description)
    request = PolicyRequest(
        session.session_id,
        observation.state,
        decode_images(observation, description, images),
        task=observation.task or session.task,
        robot_type=session.request.robot_type,
        episode=header.episode,
        episode_start=bool(header.flags & Flag.EPISODE_START),
        prefix_model=observation.prefix_model if ours else NO_ACTIONS,
        prefix_robot=observation.prefix_robot if ours else NO_ACTIONS,
        inference_delay_steps=(
            # no more steps than the prefix has rows
            min(observation.inference_delay_steps, prefix_rows(observation)) if ours else 0
        ),
        execution_horizon=min(session.request.rtc_execution_horizon, description.chunk_size),
        seed=request_seed(observation, session) if description.stochastic else 0,
    )
    return request, prefixed and not ours


def request_seed(observation: Observation, session: Session) -> int:
    """Return the seed of a request: different for each, and equal in a replay."""
    header = observation.header
    key = f'{session.session_id}/{header.episode}/{header.seq}'.encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), 'big') >> 1 or 1


def check_version(version: int, session: Session) -> None:
    if version != session.schema_version:
        raise Malformed(
            'schema_version',
            f'schema_version {version} is not the {session.schema_version} of the session',
        )


def check_state(state: Float32Array, description: PolicyDescription) -> None:
    expected = (description.observation_steps, len(description.state_names))
    if state.shape != expected:
        raise Malformed(
            'wrong_shape',
            f'state must be {expected[0]} observations of {expected[1]} values, got '
            f'{state.shape[0]} of {state.shape[1]}',
        )
    if not is_finite(state):
        rows, columns = np.nonzero(~np.isfinite(state))
        raise Malformed(
            'not_finite',
            f'state {description.state_names[columns[0]]} is {state[rows[0], columns[0]]}',
        )


def check_task(task: str, session: Session) -> None:
    if session.is_task_pinned and task not in ('', session.task):
        raise Malformed(
            'task_pinned',
            f'task {task[:80]!r} is not served, only {session.task[:80]!r}',
        )


def check_prefix(prefix: Float32Array, description: PolicyDescription) -> None:
    """Raise Malformed for a prefix of the wrong shape or with NaN; an empty one is valid."""
    columns = len(description.action_names)
    if prefix.size and prefix.shape[1] != columns:
        raise Malformed(
            'wrong_shape', f'a prefix must have {columns} columns, got {prefix.shape[1]}'
        )
    if len(prefix) > description.chunk_size:
        raise Malformed(
            'wrong_shape', f'a prefix may have {description.chunk_size} rows, got {len(prefix)}'
        )
    if not is_finite(prefix):
        raise Malformed('not_finite', 'the prefix holds NaN or infinity')


def prefix_rows(observation: Observation) -> int:
    """Return the rows of the prefix, in model or robot space."""
    return max(len(observation.prefix_model), len(observation.prefix_robot))


def decode_images(
    observation: Observation, description: PolicyDescription, images: ImageCodecPool
) -> dict[str, tuple[FrameArray, ...]]:
    """
    Return the frames of each camera of the policy, oldest first; ignore other cameras.
    """
    given = by_camera_and_step(observation.images)
    stride = description.observation_stride_steps
    steps = [stride * i for i in reversed(range(description.observation_steps))]
    wanted = [(camera.name, back) for camera in description.cameras for back in steps]
    missing = [key for key in wanted if key not in given]
    if missing:
        names = [f'{name} {back} steps back' if back else name for name, back in missing]
        raise Malformed('missing_camera', f'cameras {names} are not in the request')
    for camera in description.cameras:
        for back in steps:
            check_size(given[camera.name, back], camera)
    frames = iter(images.decode_all(tuple(given[key] for key in wanted)))
    return {
        camera.name: tuple(check_frame(next(frames), camera) for _ in steps)
        for camera in description.cameras
    }


def check_size(image: Image, camera: PolicyCamera) -> None:
    """
    Raise Malformed for an image above the size limit of this camera.

    Decoding fails later if the JPEG header has another size than the message.
    """
    limit = max_pixels(camera)
    if image.height * image.width > limit:
        raise Malformed(
            'oversized_image',
            f'{camera.name} is {image.height}x{image.width}, the policy takes '
            f'{camera.height}x{camera.width} and at most {limit} pixels are decoded; send it '
            'smaller',
        )


def max_pixels(camera: PolicyCamera) -> int:
    """Return the pixel limit of this camera."""
    return max(MAX_PIXELS_RATIO * camera.height * camera.width, MIN_PIXELS_LIMIT)


def by_camera_and_step(images: tuple[Image, ...]) -> dict[tuple[str, int], Image]:
    """Return images by camera and step. Raises Malformed for duplicates."""
    given: dict[tuple[str, int], Image] = {}
    for image in images:
        key = image.name, image.steps_back
        if key in given:
            raise Malformed(
                'doubled_camera',
                f'duplicate camera {image.name!r} for {image.steps_back} steps back; send it once',
            )
        given[key] = image
    return given


def check_frame(frame: FrameArray, camera: PolicyCamera) -> FrameArray:
    if frame.shape[2] != camera.channels or frame.dtype != np.uint8:
        raise Malformed(
            'wrong_shape',
            f'{camera.name} must have {camera.channels} channels of 8 bits, got '
            f'{frame.shape[2]} of {8 * frame.itemsize}',
        )
    return frame
