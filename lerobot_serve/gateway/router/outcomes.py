# SPDX-License-Identifier: Apache-2.0
"""Replies and refusals of the router as predictions and their errors. Pure."""

from __future__ import annotations

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.schema import Flag, Refusal
from lerobot_serve.contract.schema import Status as ChunkStatus
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.gateway.callers.predictions import Prediction, PredictionError, Status
from lerobot_serve.gateway.router.policy_contract import policy_id
from lerobot_serve.gateway.upstream import PolicyContract
from lerobot_serve.session.failover import TEMPORARY_REFUSALS
from lerobot_serve.session.machine import check_session

# a request without an answer is best sent again after this
RETRY_AFTER_S = 1.0
STATUSES: dict[int, Status] = {
    ChunkStatus.BAD_OBSERVATION: Status.INVALID,
    ChunkStatus.POLICY_ERROR: Status.FAILED,
    ChunkStatus.NOT_FINITE: Status.NOT_FINITE,
    ChunkStatus.TOO_LATE: Status.TOO_LATE,
    ChunkStatus.NO_SLOT: Status.UNAVAILABLE,
    ChunkStatus.QUOTA: Status.QUOTA,
}
STATE_LOST = 'the server no longer had the state of this session, and began anew'


def unavailable(text: str) -> PredictionError:
    return PredictionError(Status.UNAVAILABLE, text, RETRY_AFTER_S)


def refusal_error(refused: SessionRefused) -> PredictionError:
    """Return the error of a session that was not opened."""
    text = f'the session was refused: {refused}'
    if refused.code not in TEMPORARY_REFUSALS:
        return PredictionError(Status.INVALID, text, 0.0, refused.code)
    status = Status.OVERLOADED if refused.code == Refusal.CAPACITY else Status.UNAVAILABLE
    return PredictionError(status, text, RETRY_AFTER_S, refused.code)


def prediction_of(chunk: Chunk, contract: PolicyContract, episode_id: str) -> Prediction:
    """
    Return the prediction of a reply. Raises PredictionError for one without usable actions, and
    SessionLost.
    """
    check_session(chunk)
    if chunk.status != ChunkStatus.OK:
        # an unknown status is one of a later version
        status = STATUSES.get(chunk.status, Status.FAILED)
        retry_after_s = (
            RETRY_AFTER_S if status is Status.UNAVAILABLE else wire_chunk.retry_after_s(chunk)
        )
        raise PredictionError(status, chunk.status_text or status, retry_after_s)
    columns = len(contract.action_names)
    if chunk.robot.ndim != 2 or chunk.robot.shape[1] != columns:
        raise PredictionError(
            Status.FAILED,
            f'the reply has actions of shape {chunk.robot.shape}, the policy has {columns} '
            'actions; see the log of the server',
        )
    return Prediction(
        actions=chunk.robot,
        slot=chunk.slot,
        policy=policy_id(chunk.policy),
        fingerprint=chunk.policy,
        sequence=chunk.header.seq,
        inference_ms=chunk.inference_ms,
        queue_wait_ms=chunk.queue_wait_ms,
        episode_id=episode_id,
        policy_changed=bool(chunk.header.flags & Flag.POLICY_CHANGED),
        text=STATE_LOST if chunk.header.flags & Flag.STATE_LOST else chunk.status_text,
        processing_ms=chunk.processing_ms,
        superseded=chunk.superseded,
    )
