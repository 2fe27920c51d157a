# SPDX-License-Identifier: Apache-2.0
"""Sessions, observations and replies as messages of PolicyService, and back. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.client.results import GatewayAgreement, PolicyInfo
from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.data_path.chunk import Chunk, retry_after
from lerobot_serve.contract.data_path.header import Envelope
from lerobot_serve.contract.data_path.message_parts import Image as WireImage
from lerobot_serve.contract.data_path.message_parts import NO_ACTIONS
from lerobot_serve.contract.data_path.observation import Observation as WireObservation
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Codec, Flag, Refusal, Status
from lerobot_serve.contract.services.policy_service import (
    ENUMS,
    fields_of,
    Image,
    Observation,
    session_of,
)
from lerobot_serve.contract.services.session import SessionRefused

ENCODINGS = {Codec.RAW: ENUMS['Encoding']['RGB8'], Codec.JPEG: ENUMS['Encoding']['JPEG']}
NAMES = {number: name for name, number in ENUMS['Status'].items()}
STATUSES = {
    'OK': Status.OK,
    'INVALID': Status.BAD_OBSERVATION,
    'NOT_FINITE': Status.NOT_FINITE,
    'TOO_LATE': Status.TOO_LATE,
    # the gateway took a newer request for this one
    'SUPERSEDED': Status.TOO_LATE,
    # the session is opened again within the timeout, or refused with its reason
    'UNAVAILABLE': Status.NO_SESSION,
    'OVERLOADED': Status.NO_SESSION,
    'UNAUTHORIZED': Status.NO_SESSION,
    'QUOTA': Status.QUOTA,
}
REFUSALS = {
    'OVERLOADED': Refusal.CAPACITY,
    'UNAVAILABLE': Refusal.UNREACHABLE,
    'TOO_LATE': Refusal.UNREACHABLE,
}


def session_message(request: OpenSessionRequest) -> bytes:
    """Return the first message of a stream."""
    return bytes(Observation(session=session_of(request)).SerializeToString())


def observation_message(
    observation: WireObservation, cameras: Collection[str], timeout_s: float
) -> bytes:
    """Return an observation with the images of these cameras. Raises Unencodable."""
    message = Observation(
        episode_id=observation.episode_id,
        step_index=observation.header.seq,
        images=[_image(image) for image in observation.images if image.name in cameras],
        task=observation.task,
        inference_delay_steps=observation.inference_delay_steps,
        timeout_ms=max(1, int(timeout_s * 1e3)),
    )
    message.features.extend(observation.state[-1].tolist())
    return bytes(message.SerializeToString())


def _image(image: WireImage) -> Any:
    if (image.channels, image.channel_bytes) != (3, 1):
        raise Unencodable(
            f'camera {image.name}: a gateway takes height x width x 3 of uint8, got '
            f'{image.channels} channels of {8 * image.channel_bytes} bits; use a server over Zenoh'
        )
    return Image(
        name=image.name,
        data=bytes(image.data),
        height=image.height,
        width=image.width,
        encoding=ENCODINGS[Codec(image.codec)],
    )


def check_opened(action: Any) -> None:
    """Raise SessionRefused for the reply to a session that was refused."""
    name = NAMES.get(action.status, 'FAILED')
    if name == 'OK' and action.HasField('policy'):
        return
    if name == 'OK':
        raise SessionRefused(
            Refusal.SCHEMA_TOO_NEW,
            'the gateway knows no sessions of PredictStream; update it, or run an older client',
        )
    known = action.refusal in tuple(Refusal) and action.refusal
    code = Refusal(action.refusal) if known else REFUSALS.get(name, Refusal.BAD_REQUEST)
    raise SessionRefused(code, action.text or name.lower())


def agreement_of(policy: Any, codec: int, warnings: tuple[str, ...]) -> GatewayAgreement:
    """Return what was agreed with a gateway; `warnings` are those of the link."""
    return GatewayAgreement(
        client_id=policy.client_id,
        policy=policy.fingerprint,
        chunk_size=policy.chunk_steps,
        codec=Codec(codec),
        warnings=(*warnings, *policy.warnings),
        schema_version=SCHEMA_VERSION,
        # a gateway refuses policies with a history
        observation_steps=1,
        observation_stride_steps=1,
    )


def info_of(policy: Any) -> PolicyInfo:
    """Return what a gateway says of the policy."""
    told = fields_of(policy) | {'policy': policy.fingerprint, 'server_text': policy.text}
    return PolicyInfo(**{each.name: told[each.name] for each in fields(PolicyInfo)})


def chunk_of(action: Any, request: Envelope) -> Chunk:
    """Return the chunk of a reply to this request."""
    return Chunk(
        request.header.for_reply(Flag.POLICY_CHANGED if action.policy_changed else Flag.NONE),
        request.client_id,
        request.episode_id,
        robot=_actions(action),
        status=_status(action),
        status_text=encodable_text(action.text),
        slot=action.slot,
        policy=action.model_version,
        queue_wait_ms=action.queue_wait_ms,
        processing_ms=action.processing_ms,
        inference_ms=action.inference_ms,
        superseded=action.superseded,
        extensions=(retry_after(action.retry_after_s),) if action.retry_after_s > 0 else (),
    )


def _status(action: Any) -> Status:
    """Return the status; a session that was lost and refused since is opened again."""
    if action.refusal:
        return Status.NO_SESSION
    return STATUSES.get(NAMES.get(action.status, 'FAILED'), Status.POLICY_ERROR)


def _actions(action: Any) -> Float32Array:
    values, steps = np.array(action.chunk, np.float32), action.chunk_steps
    if steps <= 0 or values.size % steps:
        return NO_ACTIONS
    return values.reshape(steps, -1)
