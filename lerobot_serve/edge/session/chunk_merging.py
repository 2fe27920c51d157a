# SPDX-License-Identifier: Apache-2.0
"""
Joins chunks to the action queue: the prefix that a request carries, and the merge of its reply.

A chunk that continues the queue (real-time chunking) replaces it. Any other chunk was planned
without the queue: replacing would cause a jump, so the chunk is appended unless configured
otherwise. The request thread.
"""

from __future__ import annotations

from collections import deque
import math

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.schema import Flag
from lerobot_serve.edge.action_queue import ActionQueue, ChunkSource, Leftover
from lerobot_serve.edge.latency import LatencyTracker
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.units import SAME_UNITS, UnitConversions
from lerobot_serve.edge.session.agreement import check_reply
from lerobot_serve.edge.session.tracker import PendingRequest
from lerobot_serve.edge.session.transport.transport import SessionAgreement

# a server swaps its policy a few times in a session; an older one is agreed again
MAX_DECLARED = 16


class ChunkMerger:
    """
    Merges the chunks of one robot with `action_count` actions, one each `step_s`. Any thread may
    call `clear`; `units` are those of the actions.
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
        self._queue, self._columns, self._units = queue, action_count, units
        self.step_s = step_s
        self._latency = latency or LatencyTracker()
        self._server, self._agreement = '', SessionAgreement(0)
        # policies that the server has changed to in this session
        self._declared: deque[str] = deque(maxlen=MAX_DECLARED)

    def begin_session(self, server: str, agreement: SessionAgreement) -> None:
        """Merge chunks of this server from now on."""
        self._server, self._agreement = server, agreement
        self._declared.clear()
        self._latency.begin_session(server)

    def clear(self, *, ends_episode: bool = True) -> None:
        """Clear the queue; chunks requested before are refused."""
        self._queue.clear(ends_episode=ends_episode)

    def playable_s(self, now_ns: int, settings: EdgeParameters) -> float:
        """Return how long the queue lasts without stale actions [s]."""
        max_age_ns = int(settings.max_action_age_s * 1e9)
        return self._queue.playable_s(now_ns, self.step_s, max_age_ns)

    def prefix(self, settings: EdgeParameters) -> Leftover:
        """Return the prefix for the next chunk, empty without RTC."""
        if not self._has_rtc(settings):
            return Leftover(self._queue.mark())
        limit = self._agreement.chunk_size
        return self._queue.leftover(min(settings.execution_horizon or limit, limit))

    def continues_prefix(self, settings: EdgeParameters, prefix: Leftover) -> bool:
        """Return whether the chunk will continue the queue; an empty queue counts as continued."""
        return self._has_rtc(settings) and bool(len(prefix.robot) or not self._queue.rows_left)

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
        check_reply(chunk, self._columns, self._agreement, self._declared)
        if chunk.header.flags & Flag.POLICY_CHANGED:
            self._declared.append(chunk.policy)
        robot, source = self._units.to_robot(chunk.robot), _source(chunk, pending)
        # the robot has executed actions since the mark, also while the frames were encoded
        delay_s = (arrived_ns - pending.marked_ns) / 1e9
        if replaces_queue(chunk, pending, settings):
            skipped = self._queue.replace(
                robot,
                source,
                mark=pending.mark,
                delay_rows=math.ceil(delay_s / self.step_s),
                model=chunk.model,
            )
            is_merged = skipped is not None
        else:
            is_merged = self._queue.append(robot, source, mark=pending.mark, model=chunk.model)
        if is_merged:
            self._latency.add(self._server, delay_s, arrived_ns)
        return is_merged

    def _has_rtc(self, settings: EdgeParameters) -> bool:
        return settings.rtc and self._agreement.supports_rtc


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
