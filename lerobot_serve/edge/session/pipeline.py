# SPDX-License-Identifier: Apache-2.0
"""
Send one request at a time within a session and process its reply. The request thread.

It builds requests, matches replies to them and merges chunks into the queue. The requester decides
which server to use and when to request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import auto, Enum

import numpy as np

from lerobot_serve.edge.inputs.history import ObservationHistory
from lerobot_serve.edge.inputs.latest import InputsNotReady
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.observability.reply_stats import ReplyStats
from lerobot_serve.edge.queue.action_queue import ActionQueue, Leftover
from lerobot_serve.edge.queue.chunk_merging import merge_chunk
from lerobot_serve.edge.queue.latency import LatencyTracker
from lerobot_serve.edge.robot.units import executed_for_policy, UnitConversions
from lerobot_serve.edge.session.agreement import check_reply, default_episode_id
from lerobot_serve.edge.session.tracker import (
    ABANDONED,
    OK,
    PendingRequest,
    ReplyDropped,
    RequestEnd,
    RequestTracker,
    TIMED_OUT,
)
from lerobot_serve.edge.session.transport import (
    EpisodeRequest,
    RequestSettings,
    SessionAgreement,
    SessionStatus,
    Transport,
)
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import execution_report as wire_executed
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.errors import Malformed, Unencodable
from lerobot_serve.wire.execution_report import ExecutionReport
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Flag, MsgType, Status


class ReplyResult(Enum):
    """The result of processing one arrived message."""

    # the chunk is in the queue
    MERGED = auto()
    # the reply holds no actions
    FAILED = auto()
    # the server ended the session
    SESSION_OVER = auto()
    # not the reply to the request in flight
    DROPPED = auto()


SAME_UNITS = UnitConversions()
# the session is over, even if the queue holds actions
SESSION_ENDING_STATUSES = (Status.NO_SESSION, Status.DRAINING)
# another policy than agreed: a new session is required
FOREIGN_POLICY = 'foreign_policy'


class RequestPipeline:
    """
    Encodes requests and processes replies. Other threads read `progress`, `drops` and `tally`;
    `listener` is notified of each request and its end.
    """

    def __init__(
        self,
        link: Transport,
        history: ObservationHistory,
        actions: ActionQueue,
        latency: LatencyTracker,
        executed: Callable[[], ExecutionReport],
        *,
        client_id: str,
        action_count: int,
        first_epoch: int,
        clock: Callable[[], int],
        listener: EdgeListener | None = None,
        units: UnitConversions = SAME_UNITS,
    ) -> None:
        self._link, self.history, self._actions = link, history, actions
        self._latency, self._clock = latency, clock
        self._executed = executed
        self._client_id, self._columns = client_id, action_count
        self._units = units
        self._listener = listener or EdgeListener()
        self.progress, self.drops, self.tally = SessionStatus(), Counter(), ReplyStats()
        self._ledger = RequestTracker(first_epoch)
        # the epoch requested last; the ledger has that of the open session
        self._requested_epoch = first_epoch
        self._agreement = SessionAgreement(0)
        self._server = ''
        self._episodes = 0
        self._starting = True

    @property
    def pending(self) -> PendingRequest | None:
        """The request in flight."""
        return self._ledger.pending

    def is_for_this_client(self, client_id: str) -> bool:
        """Return whether a reply is for this robot; any thread."""
        return client_id == self._client_id

    def drop(self, reason: str) -> None:
        """Count a dropped message; any thread."""
        self.drops[reason] += 1

    def left_s(self, pace: RequestSettings) -> float:
        """Return how long the queue lasts [s]."""
        max_age_ns = int(pace.max_action_age_s * 1e9)
        return self._actions.playable_s(self._clock(), pace.step_s, max_age_ns)

    def next_session_epoch(self) -> int:
        """
        Return the epoch of the next session to request.

        Until it is open, the reply to the request in flight still counts.
        """
        self._requested_epoch = (self._requested_epoch + 1) % 2**32
        return self._requested_epoch

    def begin_session(self, server: str, agreement: SessionAgreement) -> None:
        """Start the session requested last; replies of earlier sessions are discarded."""
        self._abandon('session_lost')
        self._ledger = RequestTracker(self._requested_epoch)
        self._server, self._agreement = server, agreement
        self._latency.begin_session(server)
        self.tally.begin_session()
        self.history.require(agreement.observation_steps, agreement.observation_stride_steps)

    def begin_episode(self, episode: EpisodeRequest, *, tell: bool) -> None:
        """Clear the queue and start an episode; with `tell`, notify the server."""
        self._abandon('episode_started')
        self._actions.clear()
        self.history.restart()
        self._ledger.new_episode()
        self._starting = True
        self.name_episode(episode)
        if tell:
            epoch, number = self._ledger.session_epoch, self._ledger.episode
            self._link.reset_episode(epoch, number, self.progress.episode_id)

    def name_episode(self, episode: EpisodeRequest) -> None:
        self._episodes += 1
        self.progress.task = episode.task
        self.progress.episode_id = episode.episode_id or default_episode_id(
            self._client_id, self._ledger.session_epoch, self._episodes
        )

    def time_out(self) -> None:
        """Mark the request overdue; a reply before the next request still counts."""
        self.drops['request_timeout'] += 1
        self._ledger.time_out()

    def leave(self) -> None:
        """End the request in flight at shutdown."""
        self._abandon('stopped')

    def _abandon(self, reason: str, status: str = ABANDONED) -> None:
        """End the request in flight, if any, without a reply."""
        if self._ledger.overdue:
            reason, status = 'request_timeout', TIMED_OUT
        pending = self._ledger.give_up()
        if pending:
            self._listener.ended(RequestEnd(pending, self._clock(), status, reason))

    def ask(self, pace: RequestSettings) -> PendingRequest | None:
        """Send an observation; return None if no inputs are ready."""
        try:
            moments = self.history.take(self._clock())
            # before the frames are encoded, which takes time
            prefix = self._prefix(pace)
            # actions are as old as the current observation; the history is older on purpose
            captured_ns = moments[-1].snapshot.captured_ns
            pending = self._send(pace, captured_ns, prefix, *self._link.observe(moments))
        except InputsNotReady as error:
            self.progress.waiting_for = str(error)
            return None
        except (Malformed, Unencodable) as error:
            reason = getattr(error, 'reason', 'unencodable')
            self.drops[reason] += 1
            # it may already have a seq; an overdue one may still be replied to
            if not self._ledger.overdue:
                self._abandon(reason)
            self.progress.waiting_for = str(error)
            return None
        self.progress.waiting_for = ''
        return pending

    def _send(
        self,
        pace: RequestSettings,
        captured_ns: int,
        prefix: Leftover,
        state: np.ndarray,
        images: tuple[Image, ...],
    ) -> PendingRequest:
        if self._ledger.overdue:
            self._abandon('request_timeout', TIMED_OUT)
        now_ns = self._clock()
        left_s = self.left_s(pace)
        pending = self._ledger.begin(
            sent_ns=now_ns,
            captured_ns=captured_ns,
            mark=prefix.mark,
            episode_id=self.progress.episode_id,
            guided=self._is_guided(pace, prefix),
        )
        header = Header(
            pending.seq,
            now_ns,
            self._ledger.session_epoch,
            self._ledger.episode,
            self._agreement.schema_version,
            MsgType.OBSERVATION,
            Flag.EPISODE_START if self._starting else Flag.NONE,
        )
        delay_steps = self._latency.delay_steps(self._server, now_ns, step_s=pace.step_s)
        observation = Observation(
            header,
            self._client_id,
            self.progress.episode_id,
            state,
            images,
            self.progress.task,
            min(delay_steps, len(prefix.robot)),
            left_s,
            prefix.policy,
            prefix.model,
            self._units.to_policy(prefix.robot),
            # lost with the request; it is not sent again
            (wire_executed.encode(executed_for_policy(self._executed(), self._units)),),
        )
        raw = wire_observation.encode(observation)
        self._link.send(raw)
        self.progress.requests_sent += 1
        # while the server works
        self._listener.asked(observation, server=self._server, request_bytes=len(raw))
        return pending

    def _prefix(self, pace: RequestSettings) -> Leftover:
        """Return the prefix for the next chunk, empty without RTC."""
        if not (pace.rtc and self._agreement.supports_rtc):
            return Leftover(self._actions.mark())
        most = self._agreement.chunk_size
        return self._actions.leftover(min(pace.execution_horizon or most, most))

    def _is_guided(self, pace: RequestSettings, prefix: Leftover) -> bool:
        """Return whether the chunk will continue the queue; an empty queue counts as continued."""
        has_rtc = pace.rtc and self._agreement.supports_rtc
        return has_rtc and bool(len(prefix.robot) or not self._actions.rows_left)

    def on_answer(self, raw: bytes, arrived_ns: int, pace: RequestSettings) -> ReplyResult:
        """Process an arrived reply, or drop it with a reason."""
        try:
            chunk = wire_chunk.decode(raw)
            if not self.is_for_this_client(chunk.client_id):
                raise ReplyDropped('other_client')
            pending = self._ledger.accept(chunk.header)
        except Malformed as error:
            self.drops[error.reason] += 1
            return ReplyResult.DROPPED
        except ReplyDropped as dropped:
            self.drops[dropped.reason] += 1
            return ReplyResult.DROPPED
        outcome, status, reason = self._conclude(chunk, pending, arrived_ns, pace)
        self._listener.ended(RequestEnd(pending, arrived_ns, status, reason, chunk, len(raw)))
        return outcome

    def _conclude(
        self, chunk: Chunk, pending: PendingRequest, arrived_ns: int, pace: RequestSettings
    ) -> tuple[ReplyResult, str, str]:
        """
        Merge the matched reply, or count why it cannot be merged. Return the result for the
        requester, and the status and reason of the request's end.
        """
        try:
            check_reply(chunk, self._columns, self._agreement)
        except (Malformed, ReplyDropped) as error:
            self.drops[error.reason] += 1
            text = chunk.status_text or str(error)
            self.progress.failed = f'server error: {text}' if chunk.status else text
            is_over = chunk.status in SESSION_ENDING_STATUSES or error.reason == FOREIGN_POLICY
            return ReplyResult.SESSION_OVER if is_over else ReplyResult.FAILED, error.reason, text
        robot = self._units.to_robot(chunk.robot)
        if not merge_chunk(self._actions, robot, chunk, pending, arrived_ns, pace):
            return ReplyResult.DROPPED, ABANDONED, 'rejected_chunk'
        self._accept(chunk, pending, arrived_ns)
        return ReplyResult.MERGED, OK, ''

    def _accept(self, chunk: Chunk, pending: PendingRequest, arrived_ns: int) -> None:
        """Record the flags and timing of a merged chunk."""
        self.drops['state_lost'] += bool(chunk.header.flags & Flag.STATE_LOST)
        self.drops['policy_changed'] += bool(chunk.header.flags & Flag.POLICY_CHANGED)
        # the server has received the start of the episode
        self._starting = False
        round_trip_s = (arrived_ns - pending.sent_ns) / 1e9
        self._latency.add(self._server, round_trip_s, arrived_ns)
        self.progress.accepted(chunk, round_trip_ms=1e3 * round_trip_s)
        self.tally.add(
            chunk.slot,
            chunk.superseded,
            round_trip_s=round_trip_s,
            network_s=self.progress.network_ms / 1e3,
        )
