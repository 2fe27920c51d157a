# SPDX-License-Identifier: Apache-2.0
"""
Observations of PolicyService as requests, and predictions as its actions; the session that a
stream opens with its first message, and what is served. Pure.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
import numpy as np

from lerobot_serve.arrays import Uint8Array
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.image_codec import decode
from lerobot_serve.contract.schema import Codec
from lerobot_serve.contract.services.policy_service import (
    Action,
    Camera,
    ENUMS,
    Observation,
    Policy,
)
from lerobot_serve.gateway.callers.mapping import flat_state, NameMapping
from lerobot_serve.gateway.callers.predictions import (
    invalid,
    Prediction,
    PredictionError,
    PredictionRequest,
    Status,
)
from lerobot_serve.gateway.upstream import PolicyContract

STATUSES = ENUMS['Status']
CODECS = {ENUMS['Encoding']['RGB8']: Codec.RAW, ENUMS['Encoding']['JPEG']: Codec.JPEG}
# the reply must be there before the client gives up
REPLY_MARGIN_S = 0.005
SHORTEST_S = 0.001
# of all images of one observation, before any is decoded
PIXELS_LIMIT = 16_777_216
# more of them take longer than a few milliseconds to decode
INLINE_PIXELS = 1 << 18
# of a Policy and of a contract
SAME_FIELDS = {*Policy.DESCRIPTOR.fields_by_name} & {*PolicyContract.__slots__} - {'cameras'}


def read_observation(data: bytes) -> Any:
    """Return an Observation. Raises PredictionError."""
    try:
        return Observation.FromString(data)
    except DecodeError:
        raise invalid(f'{len(data)} bytes are no rl.policy.v1.Observation') from None


def takes_long(seen: Any) -> bool:
    """Return whether the images of an observation take long to decode; the sizes are in it."""
    jpeg = ENUMS['Encoding']['JPEG']
    pixels = [each.height * each.width for each in seen.images if each.encoding == jpeg]
    return int(sum(pixels)) > INLINE_PIXELS


def frames_of(seen: Any) -> dict[str, Uint8Array]:
    """Return the decoded images of an observation. Any thread. Raises PredictionError."""
    pixels = sum(image.height * image.width for image in seen.images)
    if pixels > PIXELS_LIMIT:
        raise invalid(f'the images have {pixels} pixels together, {PIXELS_LIMIT} are allowed')
    frames: dict[str, Uint8Array] = {}
    for image in seen.images:
        if image.name in frames:
            raise invalid(f'two images are named {image.name[:120]!r}')
        frames[image.name] = frame_of(image)
    return frames


def request_of(
    seen: Any,
    frames: dict[str, Uint8Array],
    contract: PolicyContract,
    mapping: NameMapping,
    left_s: float | None,
) -> PredictionRequest:
    """Return the request; `left_s` is what is left until the deadline. Raises PredictionError."""
    return PredictionRequest(
        state=flat_state(np.array(seen.features, np.float32), contract),
        images=mapping.images(frames, contract),
        task=seen.task,
        episode_id=seen.episode_id,
        timeout_s=timeout_s(seen.timeout_ms, left_s),
        inference_delay_steps=seen.inference_delay_steps,
    )


def timeout_s(timeout_ms: int, left_s: float | None) -> float:
    """Return the shorter of both limits, 0 for none. Raises PredictionError."""
    if timeout_ms < 0:
        raise invalid(f'timeout_ms must be at least 0, got {timeout_ms}')
    limits = [timeout_ms / 1e3] if timeout_ms else []
    if left_s is not None:
        if left_s <= REPLY_MARGIN_S:
            raise PredictionError(
                Status.TOO_LATE, 'the deadline of the call has passed; allow more time'
            )
        limits.append(left_s - REPLY_MARGIN_S)
    return max(min(limits), SHORTEST_S) if limits else 0.0


def frame_of(image: Any) -> Uint8Array:
    """Return the frame of an image. Raises PredictionError."""
    codec = CODECS.get(image.encoding)
    if codec is None:
        raise invalid(f'image {image.name[:120]!r}: encoding must be in [0, 1]')
    data = np.frombuffer(image.data, np.uint8)
    try:
        frame = decode(Image(image.name, image.height, image.width, data, codec=codec))
    except Malformed as error:
        raise invalid(f'{error}; send height x width x 3 bytes of RGB, or JPEG') from None
    return frame.astype(np.uint8, copy=False)


def action_of(prediction: Prediction, step_index: int) -> bytes:
    """Return the Action of a prediction."""
    actions = prediction.actions
    action = Action(
        model_version=prediction.fingerprint,
        step_index=step_index,
        chunk_steps=len(actions),
        slot=prediction.slot,
        inference_ms=prediction.inference_ms,
        queue_wait_ms=prediction.queue_wait_ms,
        policy_changed=prediction.policy_changed,
        text=prediction.text,
        processing_ms=prediction.processing_ms,
        superseded=prediction.superseded,
    )
    action.continuous_actions.extend(actions[0].tolist())
    action.chunk.extend(actions.ravel().tolist())
    return bytes(action.SerializeToString())


def refused_action(error: PredictionError, step_index: int) -> bytes:
    """Return the Action of an observation without a prediction."""
    status = STATUSES[error.status.name]
    action = Action(
        step_index=step_index,
        status=status,
        text=error.text,
        refusal=int(error.refusal),
        retry_after_s=error.retry_after_s,
    )
    return bytes(action.SerializeToString())


def policy_of(contract: PolicyContract, client_id: str = '') -> Any:
    """Return the Policy of a contract; `client_id` is the name of an open session."""
    return Policy(
        id=contract.policy,
        cameras=[
            Camera(name=name, height=height, width=width, channels=channels)
            for name, (height, width, channels) in contract.cameras.items()
        ],
        client_id=client_id,
        **{name: getattr(contract, name) for name in SAME_FIELDS},
    )


def opened_action(contract: PolicyContract, client_id: str, step_index: int) -> bytes:
    """Return the reply to a message that opened a session."""
    policy = policy_of(contract, client_id)
    action = Action(step_index=step_index, model_version=contract.fingerprint, policy=policy)
    return bytes(action.SerializeToString())
