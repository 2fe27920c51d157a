"""
An observation, decoded and checked against its session: what is wrong in it stops here.

Inference thread.
"""

from __future__ import annotations

import hashlib

import numpy as np

from lerobot_serve.policies.base import PolicyCamera, PolicyDescription, PolicyRequest
from lerobot_serve.server.sessions.session_table import Session
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.image_codec import ImageCodecPool
from lerobot_serve.wire.message_parts import Image, NO_ACTIONS
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Flag

# an image may have so many times the pixels that the policy takes, and in any case those of a
# full HD frame: robots send what their cameras give; to decode more would keep all others waiting
MAX_PIXELS_RATIO, MIN_PIXELS_LIMIT = 4, 1920 * 1080


def make_policy_request(
    observation: Observation, session: Session, served: PolicyDescription, images: ImageCodecPool
) -> tuple[PolicyRequest, bool]:
    """Return what the policy is asked, and whether a prefix was ignored. Raises Malformed."""
    header = observation.header
    check_version(header.schema_version, session)
    check_state(observation.state, served)
    check_task(observation.task, session)
    prefixed = bool(observation.prefix_model.size or observation.prefix_robot.size)
    ours = prefixed and observation.prefix_policy == served.fingerprint and served.supports_rtc
    if ours:
        check_prefix(observation.prefix_model, served)
        check_prefix(observation.prefix_robot, served)
    request = PolicyRequest(
        session.session_id,
        observation.state,
        decode_images(observation, served, images),
        observation.task or session.task,
        session.ask.robot_type,
        header.episode,
        bool(header.flags & Flag.EPISODE_START),
        observation.prefix_model if ours else NO_ACTIONS,
        observation.prefix_robot if ours else NO_ACTIONS,
        # nobody can have lived more of the old chunk than there is
        min(observation.inference_delay_steps, prefix_rows(observation)) if ours else 0,
        min(session.ask.rtc_execution_horizon, served.chunk_size),
        request_seed(observation, session) if served.stochastic else 0,
    )
    return request, prefixed and not ours


def request_seed(observation: Observation, session: Session) -> int:
    """Return the seed of a request: another one each time, and the same again in a replay."""
    header = observation.header
    key = f'{session.session_id}/{header.episode}/{header.seq}'.encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), 'big') >> 1 or 1


def check_version(version: int, session: Session) -> None:
    if version != session.schema_version:
        raise Malformed(
            'schema_version',
            f'schema_version {version} is not the {session.schema_version} of the session',
        )


def check_state(state: np.ndarray, served: PolicyDescription) -> None:
    expected = (served.observation_steps, len(served.state_names))
    if state.shape != expected:
        raise Malformed(
            'wrong_shape',
            f'state must be {expected[0]} observations of {expected[1]} values, got '
            f'{state.shape[0]} of {state.shape[1]}',
        )
    if not np.isfinite(state).all():
        rows, columns = np.nonzero(~np.isfinite(state))
        raise Malformed(
            'not_finite', f'state {served.state_names[columns[0]]} is {state[rows[0], columns[0]]}'
        )


def check_task(task: str, session: Session) -> None:
    if session.task_pinned and task not in ('', session.task):
        raise Malformed(
            'task_pinned', f'asked for task {task[:80]!r}, only {session.task[:80]!r} is served'
        )


def check_prefix(prefix: np.ndarray, served: PolicyDescription) -> None:
    """An empty one is none."""
    columns = len(served.action_names)
    if prefix.size and prefix.shape[1] != columns:
        raise Malformed(
            'wrong_shape', f'a prefix must have {columns} columns, got {prefix.shape[1]}'
        )
    if len(prefix) > served.chunk_size:
        raise Malformed(
            'wrong_shape', f'a prefix may have {served.chunk_size} rows, got {len(prefix)}'
        )
    if not np.isfinite(prefix).all():
        raise Malformed('not_finite', 'the prefix holds NaN or infinity')


def prefix_rows(observation: Observation) -> int:
    """Return how long a prefix is, in whichever units it came."""
    return max(len(observation.prefix_model), len(observation.prefix_robot))


def decode_images(
    observation: Observation, served: PolicyDescription, images: ImageCodecPool
) -> dict[str, tuple[np.ndarray, ...]]:
    """
    Return each camera that the policy wants with its frames, oldest first; others are not looked
    at.
    """
    given = by_camera_and_step(observation.images)
    stride = served.observation_stride_steps
    steps = [stride * i for i in reversed(range(served.observation_steps))]
    wanted = [(camera.name, back) for camera in served.cameras for back in steps]
    missing = [f'{name} {back} steps back' if back else name for name, back in wanted]
    missing = [text for text, key in zip(missing, wanted, strict=True) if key not in given]
    if missing:
        raise Malformed('missing_camera', f'cameras {missing} are not in the request')
    for camera in served.cameras:
        for back in steps:
            check_size(given[camera.name, back], camera)
    frames = iter(images.decode_all(tuple(given[key] for key in wanted)))
    return {
        camera.name: tuple(check_frame(next(frames), camera) for _ in steps)
        for camera in served.cameras
    }


def check_size(image: Image, camera: PolicyCamera) -> None:
    """
    Raise Malformed for an image that is too large to be decoded for this camera.

    The announced size is that of the JPEG's own header, or its decoding is refused.
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
    """Return how many pixels an image of this camera may have."""
    return max(MAX_PIXELS_RATIO * camera.height * camera.width, MIN_PIXELS_LIMIT)


def by_camera_and_step(images: tuple[Image, ...]) -> dict[tuple[str, int], Image]:
    """Of two images of one camera and one time, nobody could say which one counts."""
    given: dict[tuple[str, int], Image] = {}
    for image in images:
        key = image.name, image.steps_back
        if key in given:
            raise Malformed(
                'doubled_camera',
                f'camera {image.name!r} is there twice for {image.steps_back} steps back',
            )
        given[key] = image
    return given


def check_frame(frame: np.ndarray, camera: PolicyCamera) -> np.ndarray:
    if frame.shape[2] != camera.channels or frame.dtype != np.uint8:
        raise Malformed(
            'wrong_shape',
            f'{camera.name} must have {camera.channels} channels of 8 bits, got '
            f'{frame.shape[2]} of {8 * frame.itemsize}',
        )
    return frame
