# SPDX-License-Identifier: Apache-2.0
"""
Joins chunks to the action queue: the prefix that a request carries, and the merge of its reply.

A chunk that continues the queue (real-time chunking) replaces it. Any other chunk was planned
without the queue: replacing would cause a jump, so the chunk is appended unless configured
otherwise. The request thread.
"""

from __future__ import annotations

import math

import numpy as np

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import OpenSessionResponse
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.edge.action_queue import ActionQueue, ChunkSource, Leftover
from lerobot_serve.edge.latency import LatencyTracker
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.units import SAME_UNITS, UnitConversions
from lerobot_serve.edge.session.request import PendingRequest
from lerobot_serve.session.chunk_terms import ChunkTerms
from lerobot_serve.session.machine import ReplyDropped


class ChunkMerger:
    """
    Merges the chunks of one robot with `action_count` actions, one each `step_s`; `units` are
    those of the actions. Any thread may clear the `queue`: chunks requested before are refused.
    """

    def __init__(
        self,
        queue: ActionQueue,
        action_count: int,
        *,
        step_s: float,
        units: UnitConversions = SAME_UNITS,
        latency: LatencyTracker | None = None,
    ) -> None:
        self.queue, self._columns, self.units = queue, action_count, units
        self.step_s = step_s
        self._latency = latency or LatencyTracker()
        self._server, self._agreement, self._terms = '', OpenSessionResponse(), ChunkTerms()

    def begin_session(self, server: str, agreement: OpenSessionResponse) -> None:
        """Merge chunks of this server from now on."""
        self._server, self._agreement = server, agreement
        self._terms = ChunkTerms(agreement.policy, agreement.chunk_size)
        self._latency.begin_session(server)

    def playable_s(self, now_ns: int, settings: EdgeParameters) -> float:
        """Return how long the queue lasts without stale actions [s]."""
        max_age_ns = int(settings.max_action_age_s * 1e9)
        return self.queue.playable_s(now_ns, self.step_s, max_age_ns)

    def prefix(self, settings: EdgeParameters) -> Leftover:
        """Return the prefix for the next chunk, empty without RTC."""
        if not self._has_rtc(settings):
            return Leftover(self.queue.mark())
        limit = self._agreement.chunk_size
        return self.queue.leftover(min(settings.execution_horizon or limit, limit))

    def continues_prefix(self, settings: EdgeParameters, prefix: Leftover) -> bool:
        """Return whether the chunk will continue the queue; an empty queue counts as continued."""
        return self._has_rtc(settings) and bool(len(prefix.robot) or not self.queue.rows_left)

    def delay_steps(self, now_ns: int) -> int:
        """Return the expected delay of the next reply from its mark on, in steps."""
        return self._latency.delay_steps(self._server, now_ns, step_s=self.step_s)

    def merge(
        self, chunk: Chunk, pending: PendingRequest, arrived_ns: int, settings: EdgeParameters
    ) -> bool:
        """
        Merge a reply; return False if its episode has ended meanwhile. Raises ReplyDropped or
        Malformed for a reply without usable actions.
        """
        check_reply(chunk, self._columns, self._terms)
        self._terms.accept(chunk)
        robot, source = self.units.to_robot(chunk.robot), _source(chunk, pending)
        # the robot has executed actions since the mark, also while the frames were encoded
        delay_s = (arrived_ns - pending.marked_ns) / 1e9
        if replaces_queue(chunk, pending, settings):
            skipped = self.queue.replace(
                robot,
                source,
                mark=pending.mark,
                delay_rows=math.ceil(delay_s / self.step_s),
                model=chunk.model,
            )
            is_merged = skipped is not None
        else:
            is_merged = self.queue.append(robot, source, mark=pending.mark, model=chunk.model)
        if is_merged:
            self._latency.add(self._server, delay_s, arrived_ns)
        return is_merged

    def _has_rtc(self, settings: EdgeParameters) -> bool:
        return settings.rtc and self._agreement.supports_rtc


def check_reply(chunk: Chunk, columns: int, terms: ChunkTerms) -> None:
    """Raise ReplyDropped or Malformed for a reply without usable actions."""
    if chunk.status != Status.OK:
        known = chunk.status in tuple(Status)
        raise ReplyDropped(Status(chunk.status).name.lower() if known else 'unknown_status')
    if chunk.robot.shape[1] != columns or not len(chunk.robot):
        raise Malformed(
            'wrong_shape', f'chunk of shape {chunk.robot.shape}, expected {columns} columns'
        )
    terms.check(chunk)
    if len(chunk.model) not in (0, len(chunk.robot)):
        raise Malformed(
            'wrong_shape',
            f'{len(chunk.model)} rows in model space, {len(chunk.robot)} in robot space',
        )
    # the rows in model space are the prefix of the next request
    if not (np.isfinite(chunk.robot).all() and np.isfinite(chunk.model).all()):
        raise Malformed('not_finite', 'the chunk holds NaN or infinity')


def replaces_queue(chunk: Chunk, pending: PendingRequest, settings: EdgeParameters) -> bool:
    """Return whether the chunk replaces the queue instead of being appended."""
    has_continued = pending.continues_prefix and not chunk.header.flags & Flag.PREFIX_IGNORED
    return has_continued or settings.merge_mode == 'replace'


def _source(chunk: Chunk, pending: PendingRequest) -> ChunkSource:
    return ChunkSource(
        seq=pending.header.seq,
        session_epoch=pending.header.session_epoch,
        episode=pending.header.episode,
        episode_id=pending.episode_id,
        captured_ns=pending.captured_ns,
        slot=chunk.slot,
        policy=chunk.policy,
    )
