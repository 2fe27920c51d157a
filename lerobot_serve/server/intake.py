"""
An observation, decoded and checked against its session: what is wrong in it stops here.

Worker thread.
"""

from __future__ import annotations

import numpy as np

from lerobot_serve.policies.base import Description, PolicyRequest
from lerobot_serve.server.sessions import Session
from lerobot_serve.wire.content import NO_ACTIONS
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.images import ImagePool
from lerobot_serve.wire.observation import Observation


def policy_request(
    observation: Observation, session: Session, served: Description, images: ImagePool
) -> tuple[PolicyRequest, bool]:
    """Return what the policy is asked, and whether a prefix was ignored. Raises Malformed."""
    check_version(observation.header.schema_version, session)
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
        observation.prefix_model if ours else NO_ACTIONS,
        observation.prefix_robot if ours else NO_ACTIONS,
        observation.inference_delay_steps if ours else 0,
    )
    return request, prefixed and not ours


def check_version(version: int, session: Session) -> None:
    if version != session.schema_version:
        raise Malformed(
            'schema_version',
            f'schema_version {version} is not the {session.schema_version} of the session',
        )


def check_state(state: np.ndarray, served: Description) -> None:
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


def check_prefix(prefix: np.ndarray, served: Description) -> None:
    """An empty one is none."""
    columns = len(served.action_names)
    if prefix.size and prefix.shape[1] != columns:
        raise Malformed(
            'wrong_shape', f'a prefix must have {columns} columns, got {prefix.shape[1]}'
        )
    if not np.isfinite(prefix).all():
        raise Malformed('not_finite', 'the prefix holds NaN or infinity')


def check_once(observation: Observation) -> None:
    """Of two images of one camera and one time, nobody could say which one counts."""
    seen = set()
    for image in observation.images:
        key = image.name, image.steps_back
        if key in seen:
            raise Malformed(
                'doubled_camera',
                f'camera {image.name!r} is there twice for {image.steps_back} steps back',
            )
        seen.add(key)


def decode_images(
    observation: Observation, served: Description, images: ImagePool
) -> dict[str, np.ndarray]:
    """Decode the cameras that the policy wants; others are not looked at."""
    check_once(observation)
    given = {image.name: image for image in observation.images if not image.steps_back}
    missing = [camera.name for camera in served.cameras if camera.name not in given]
    if missing:
        raise Malformed('missing_camera', f'cameras {missing} are not in the request')
    wanted = [given[camera.name] for camera in served.cameras]
    frames = images.decode_all(tuple(wanted))
    for camera, frame in zip(served.cameras, frames, strict=True):
        if frame.shape[2] != camera.channels or frame.dtype != np.uint8:
            raise Malformed(
                'wrong_shape',
                f'{camera.name} must have {camera.channels} channels of 8 bits, got '
                f'{frame.shape[2]} of {8 * frame.itemsize}',
            )
    return {camera.name: frame for camera, frame in zip(served.cameras, frames, strict=True)}
