# SPDX-License-Identifier: Apache-2.0
"""
Merge a chunk into the action queue. The request thread.

A chunk that continues the queue (real-time chunking) replaces it. Any other chunk was planned
without the queue: replacing would cause a jump, so it is appended unless configured otherwise.
"""

from __future__ import annotations

import math

import numpy as np

from lerobot_serve.edge.queue.action_queue import ActionQueue, ChunkSource
from lerobot_serve.edge.session.tracker import PendingRequest
from lerobot_serve.edge.session.transport import RequestSettings
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.schema import Flag


def replaces_queue(chunk: Chunk, pending: PendingRequest, pace: RequestSettings) -> bool:
    """Return whether the chunk replaces the queue instead of being appended."""
    is_guided = pending.guided and not chunk.header.flags & Flag.PREFIX_IGNORED
    return is_guided or not pace.append


def merge_chunk(
    actions: ActionQueue,
    robot: np.ndarray,
    chunk: Chunk,
    pending: PendingRequest,
    arrived_ns: int,
    pace: RequestSettings,
) -> bool:
    """
    Merge a chunk, `robot` in the units of the robot; False if its episode has ended meanwhile.
    """
    source = ChunkSource(
        pending.seq,
        pending.session_epoch,
        pending.episode,
        pending.episode_id,
        pending.captured_ns,
        chunk.slot,
        chunk.policy,
    )
    if not replaces_queue(chunk, pending, pace):
        return actions.append(robot, source, mark=pending.mark, model=chunk.model)
    passed_s = (arrived_ns - pending.sent_ns) / 1e9
    skipped = actions.replace(
        robot,
        source,
        mark=pending.mark,
        delay_rows=math.ceil(passed_s / pace.step_s),
        model=chunk.model,
    )
    return skipped is not None
