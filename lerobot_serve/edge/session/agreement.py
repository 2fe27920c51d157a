# SPDX-License-Identifier: Apache-2.0
"""Validate agreements and replies of a server. Pure functions."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.limits import FINGERPRINT_LIMIT
from lerobot_serve.contract.schema import Flag, Refusal, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.edge.session.tracker import ReplyDropped
from lerobot_serve.edge.session.transport.transport import SessionAgreement

# half a minute at 30 Hz; docs/architecture.md has its memory cost
MAX_HISTORY_STEPS = 1000
# between the policies of a router's slots
POLICY_SEPARATOR = '|'
# bound without an agreed size: longer than the chunk of any policy
MAX_CHUNK_ROWS = 1000


def check_agreement(agreement: SessionAgreement) -> None:
    """Raise SessionRefused for a history longer than the robot keeps."""
    steps, stride_steps = agreement.observation_steps, agreement.observation_stride_steps
    if steps < 1 or stride_steps < 1:
        raise SessionRefused(
            Refusal.WRONG_POLICY,
            f'the server requires {steps} observations per request, {stride_steps} control steps '
            'apart; both must be 1 or more: correct or update the server',
        )
    reach_steps = (steps - 1) * stride_steps
    if reach_steps > MAX_HISTORY_STEPS:
        raise SessionRefused(
            Refusal.WRONG_POLICY,
            f'the server requires {steps} observations per request, {stride_steps} control steps '
            f'apart, which reach {reach_steps} steps back; a robot keeps {MAX_HISTORY_STEPS}: '
            'use a policy with a shorter history',
        )


def check_reply(
    chunk: Chunk, columns: int, agreement: SessionAgreement, declared: Collection[str] = ()
) -> None:
    """
    Raise ReplyDropped or Malformed for a reply without usable actions. `declared` are policies
    that the server has declared as changed, in earlier chunks.
    """
    if chunk.status != Status.OK:
        known = chunk.status in tuple(Status)
        raise ReplyDropped(Status(chunk.status).name.lower() if known else 'unknown_status')
    if chunk.robot.shape[1] != columns or not len(chunk.robot):
        raise Malformed(
            'wrong_shape', f'chunk of shape {chunk.robot.shape}, expected {columns} columns'
        )
    most = max_chunk_rows(agreement)
    if len(chunk.robot) > most:
        raise Malformed(
            'too_long', f'the chunk holds {len(chunk.robot)} actions, {most} were agreed'
        )
    if chunk.policy not in declared and not is_agreed_policy(chunk, agreement):
        raise Malformed(
            'foreign_policy', f'reply of {chunk.policy!r}, {agreement.policy!r} was agreed'
        )
    if len(chunk.model) not in (0, len(chunk.robot)):
        raise Malformed(
            'wrong_shape',
            f'{len(chunk.model)} rows in model space, {len(chunk.robot)} in robot space',
        )
    # the rows in model space are the prefix of the next request
    if not (np.isfinite(chunk.robot).all() and np.isfinite(chunk.model).all()):
        raise Malformed('not_finite', 'the chunk holds NaN or infinity')


def max_chunk_rows(agreement: SessionAgreement) -> int:
    """
    Return the longest accepted chunk; a router of several policies reports only the smallest.
    """
    is_exact = agreement.chunk_size > 0 and POLICY_SEPARATOR not in agreement.policy
    return agreement.chunk_size if is_exact else MAX_CHUNK_ROWS


def is_agreed_policy(chunk: Chunk, agreement: SessionAgreement) -> bool:
    """Return whether the chunk is of an agreed policy, or the server declared a change."""
    if not agreement.policy or chunk.header.flags & Flag.POLICY_CHANGED:
        return True
    *others, last = agreement.policy.split(POLICY_SEPARATOR)
    # several long names are truncated
    is_cut = len(agreement.policy) >= FINGERPRINT_LIMIT
    return chunk.policy in (*others, last) or (is_cut and chunk.policy.startswith(last))
