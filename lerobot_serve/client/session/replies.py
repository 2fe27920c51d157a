# SPDX-License-Identifier: Apache-2.0
"""Turn the bytes of a reply into a prediction, or into the error that it reports. Pure."""

from __future__ import annotations

from lerobot_serve.arrays import is_finite
from lerobot_serve.client.errors import (
    NotFinite,
    PolicyClientError,
    PolicyFailed,
    QuotaUsedUp,
    ServerUnavailable,
    TooLate,
    WrongObservation,
)
from lerobot_serve.client.results import Prediction, Timings
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.session.machine import check_session

SAME_VERSION = 'both ends need the same version of lerobot_serve'


def read_chunk(raw: bytes) -> Chunk:
    """Return a chunk with actions. Raises PolicyClientError, and SessionLost."""
    try:
        chunk = wire_chunk.decode(raw)
    except Malformed as error:
        raise PolicyFailed(f'the reply cannot be read ({error})', SAME_VERSION) from None
    check_session(chunk)
    if chunk.status != Status.OK:
        raise status_error(chunk)
    return chunk


def status_error(chunk: Chunk) -> PolicyClientError:
    """Return the error of a chunk whose status is not OK."""
    status, text = chunk.status, chunk.status_text
    match status:
        case Status.BAD_OBSERVATION:
            return WrongObservation(text, 'correct the observation')
        case Status.NOT_FINITE:
            return NotFinite(text or 'the policy produced NaN or infinity', 'check the policy')
        case Status.TOO_LATE:
            return TooLate(text, 'raise timeout_s, or look at the load of the server')
        case Status.NO_SLOT:
            return ServerUnavailable(text, 'see `lerobot-serve rollout status`')
        case Status.QUOTA:
            return QuotaUsedUp(text, wire_chunk.retry_after_s(chunk))
        case Status.POLICY_ERROR:
            return PolicyFailed(text, 'see the log of the server')
    return PolicyFailed(f'unknown status {status}: {text}', SAME_VERSION)


def prediction_of(
    chunk: Chunk, names: tuple[str, ...], round_trip_ms: float, *, policy_changed: bool
) -> Prediction:
    """Return the prediction of a chunk. Raises PolicyFailed and NotFinite."""
    actions = chunk.robot
    if not len(actions) or actions.shape[1] != len(names):
        raise PolicyFailed(
            f'the chunk has the shape {actions.shape}, {len(names)} actions were agreed',
            SAME_VERSION,
        )
    if not is_finite(actions):
        raise NotFinite('the chunk holds NaN or infinity', 'check the policy')
    return Prediction(
        # the decoded array is a view that cannot be written
        actions=actions.copy(),
        slot=chunk.slot,
        policy=chunk.policy.partition('@')[0],
        fingerprint=chunk.policy,
        policy_changed=policy_changed or bool(chunk.header.flags & Flag.POLICY_CHANGED),
        timings=Timings(
            round_trip_ms, chunk.queue_wait_ms, chunk.processing_ms, chunk.inference_ms
        ),
        sequence=chunk.header.seq,
        episode_id=chunk.episode_id,
        superseded=chunk.superseded,
    )
