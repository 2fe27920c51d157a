"""
One request after the other within a session, and which answers count. The request thread.

What it decides: what a request carries, whether an answer is the one that is waited for, and how a
chunk joins what is left to play. Whom to ask, and when, is the requester's.
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
    """What became of something that arrived."""

    # a chunk is in the queue
    MERGED = auto()
    # the server answered, but not with actions
    FAILED = auto()
    # the server answered that the session is over
    SESSION_OVER = auto()
    # it was no answer to the request in flight
    DROPPED = auto()


SAME_UNITS = UnitConversions()
# the session is over, whatever the robot still has to play
SESSION_ENDING_STATUSES = (Status.NO_SESSION, Status.DRAINING)
# another policy than agreed: a new session agrees again
FOREIGN_POLICY = 'foreign_policy'


class RequestPipeline:
    """
    See the module. `progress`, `drops` and `tally` are read by other threads; `listener` is told
    what becomes of each request.
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
        # the latest that was asked for; the ledger's is the one that is open
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
        """Return whether an answer is for this robot; any thread."""
        return client_id == self._client_id

    def drop(self, reason: str) -> None:
        """Count something that was dropped; any thread."""
        self.drops[reason] += 1

    def left_s(self, pace: RequestSettings) -> float:
        """Return for how long the robot can go on with what it has."""
        max_age_ns = int(pace.max_action_age_s * 1e9)
        return self._actions.playable_s(self._clock(), pace.step_s, max_age_ns)

    def next_session_epoch(self) -> int:
        """
        Return the number of a session that is about to be asked for.

        Until that one is open, the answer to the request in flight counts.
        """
        self._requested_epoch = (self._requested_epoch + 1) % 2**32
        return self._requested_epoch

    def begin_session(self, server: str, agreement: SessionAgreement) -> None:
        """The session that was asked for last is open: answers of older ones do not count."""
        self._abandon('session_lost')
        self._ledger = RequestTracker(self._requested_epoch)
        self._server, self._agreement = server, agreement
        self._latency.begin_session(server)
        self.tally.begin_session()
        self.history.require(agreement.observation_steps, agreement.observation_stride_steps)

    def begin_episode(self, episode: EpisodeRequest, *, tell: bool) -> None:
        """Nothing of the episode before is played or sent any more; `tell` the server, too."""
        self._abandon('episode_began')
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
        """Wait no longer; an answer that comes before the next request still counts."""
        self.drops['request_timeout'] += 1
        self._ledger.time_out()

    def leave(self) -> None:
        """Nothing is asked any more."""
        self._abandon('stopped')

    def _abandon(self, reason: str, status: str = ABANDONED) -> None:
        """Let the request in flight, if there is one, have ended without an answer."""
        if self._ledger.overdue:
            reason, status = 'request_timeout', TIMED_OUT
        pending = self._ledger.give_up()
        if pending:
            self._listener.ended(RequestEnd(pending, self._clock(), status, reason))

    def ask(self, pace: RequestSettings) -> PendingRequest | None:
        """Send an observation; None when there is none to send."""
        try:
            moments = self.history.take(self._clock())
            # before the frames are encoded, which takes its time too
            prefix = self._prefix(pace)
            # what is played is as old as the present observation; the past ones are meant to be
            captured_ns = moments[-1].snapshot.captured_ns
            pending = self._send(pace, captured_ns, prefix, *self._link.observe(moments))
        except InputsNotReady as error:
            self.progress.waiting_for = str(error)
            return None
        except (Malformed, Unencodable) as error:
            reason = getattr(error, 'reason', 'unencodable')
            self.drops[reason] += 1
            # it may have got a number; the one before may still be answered
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
            # lost if the request is: no robot plays it again
            (wire_executed.encode(executed_for_policy(self._executed(), self._units)),),
        )
        raw = wire_observation.encode(observation)
        self._link.send(raw)
        self.progress.requests_sent += 1
        # while the server works
        self._listener.asked(observation, server=self._server, request_bytes=len(raw))
        return pending

    def _prefix(self, pace: RequestSettings) -> Leftover:
        """Return what is left to play where that guides the next chunk, otherwise nothing."""
        if not (pace.rtc and self._agreement.supports_rtc):
            return Leftover(self._actions.mark())
        most = self._agreement.chunk_size
        return self._actions.leftover(min(pace.execution_horizon or most, most))

    def _is_guided(self, pace: RequestSettings, prefix: Leftover) -> bool:
        """Where nothing is left there is nothing to continue, and nothing to cut into."""
        has_rtc = pace.rtc and self._agreement.supports_rtc
        return has_rtc and bool(len(prefix.robot) or not self._actions.rows_left)

    def on_answer(self, raw: bytes, arrived_ns: int, pace: RequestSettings) -> ReplyResult:
        """Let what arrived count, or drop it with a reason."""
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
        Merge the answer that was waited for, or count why it cannot be. Return what that is to the
        requester, and the status and the reason of the request's end.
        """
        try:
            check_reply(chunk, self._columns, self._agreement)
        except (Malformed, ReplyDropped) as error:
            self.drops[error.reason] += 1
            text = chunk.status_text or str(error)
            self.progress.failed = f'the server says: {text}' if chunk.status else text
            is_over = chunk.status in SESSION_ENDING_STATUSES or error.reason == FOREIGN_POLICY
            return ReplyResult.SESSION_OVER if is_over else ReplyResult.FAILED, error.reason, text
        robot = self._units.to_robot(chunk.robot)
        if not merge_chunk(self._actions, robot, chunk, pending, arrived_ns, pace):
            return ReplyResult.DROPPED, ABANDONED, 'refused_chunk'
        self._accept(chunk, pending, arrived_ns)
        return ReplyResult.MERGED, OK, ''

    def _accept(self, chunk: Chunk, pending: PendingRequest, arrived_ns: int) -> None:
        """Note what a chunk that is played tells beside its actions."""
        self.drops['state_lost'] += bool(chunk.header.flags & Flag.STATE_LOST)
        self.drops['policy_changed'] += bool(chunk.header.flags & Flag.POLICY_CHANGED)
        # until now the server may not have heard that the episode began
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
