# SPDX-License-Identifier: Apache-2.0
"""
Sends one request at a time within a session and processes its reply. The request thread.

Down: the encoder takes inputs and encodes a request, the transport sends it. Back: the tracker
matches a reply to the request, the merger joins its chunk to the queue. The requester decides
which server to use and when to request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import auto, Enum
from typing import NamedTuple

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.edge.action_queue import Leftover
from lerobot_serve.edge.inputs.latest import HistoryStep, InputsNotReady
from lerobot_serve.edge.observability.listener import EdgeListener, ReplyStats
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.chunk_merging import ChunkMerger
from lerobot_serve.edge.session.observation_encoder import ObservationEncoder
from lerobot_serve.edge.session.tracker import (
    ABANDONED,
    OK,
    PendingRequest,
    ReplyDropped,
    RequestEnd,
    RequestTracker,
    TIMED_OUT,
    TOO_LATE_REASONS,
)
from lerobot_serve.edge.session.transport.transport import SessionAgreement, Transport

# the session is over, even if the queue holds actions
SESSION_ENDING_STATUSES = (Status.NO_SESSION, Status.DRAINING)
# another policy than agreed: a new session is required
FOREIGN_POLICY = 'foreign_policy'


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """Task and id of an episode; an empty id is generated."""

    task: str = ''
    episode_id: str = ''


class ReplyResult(Enum):
    """The result of processing one arrived message."""

    # the chunk is in the queue
    MERGED = auto()
    # the reply holds no actions
    NO_ACTIONS = auto()
    # the server ended the session
    SESSION_ENDED = auto()
    # not the reply to the request in flight
    DROPPED = auto()


class ProcessedReply(NamedTuple):
    """
    The result, and why the reply holds no actions; empty if it does. A server whose quota is used
    up admits the next request after `retry_after_s`. `is_of_session`: a server replies in this
    session, even where the reply comes too late for its request.
    """

    result: ReplyResult
    failure: str = ''
    retry_after_s: float = 0.0
    is_of_session: bool = True


@dataclass
class SessionStatus:
    """
    Status of requests. The request thread writes field by field, any thread reads; any thread
    counts drops.
    """

    waiting_for: str = ''
    last_failure: str = ''
    server: str = ''
    task: str = ''
    episode_id: str = ''
    slot: str = ''
    policy: str = ''
    round_trip_ms: float = 0.0
    network_ms: float = 0.0
    requests_sent: int = 0
    chunks_accepted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def count_dropped(self, reason: str) -> None:
        """Count a dropped message; any thread."""
        self.dropped[reason] += 1

    def on_chunk_merged(self, chunk: Chunk, *, round_trip_ms: float) -> None:
        """Record a merged chunk."""
        self.last_failure = ''
        self.slot, self.policy = chunk.slot, chunk.policy
        self.round_trip_ms = round_trip_ms
        server_ms = chunk.queue_wait_ms + chunk.processing_ms + chunk.inference_ms
        self.network_ms = max(0.0, round_trip_ms - server_ms)
        self.chunks_accepted += 1
        self.dropped['state_lost'] += bool(chunk.header.flags & Flag.STATE_LOST)
        self.dropped['policy_changed'] += bool(chunk.header.flags & Flag.POLICY_CHANGED)


class RequestPipeline:
    """
    Sends requests and processes replies. Other threads read `status` and `reply_stats`; `listener`
    is notified of each request and its end.
    """

    def __init__(
        self,
        transport: Transport,
        encoder: ObservationEncoder,
        merger: ChunkMerger,
        tracker: RequestTracker,
        *,
        status: SessionStatus,
        clock: Callable[[], int],
        listener: EdgeListener,
    ) -> None:
        self._transport, self._encoder, self._merger = transport, encoder, merger
        self._tracker, self.status = tracker, status
        self._clock, self._listener = clock, listener
        self.reply_stats = ReplyStats()
        # why a message since the last request could not be read
        self.unreadable = ''

    @property
    def step_s(self) -> float:
        """The time of one action."""
        return self._merger.step_s

    @property
    def in_flight(self) -> PendingRequest | None:
        """The request in flight."""
        return self._tracker.in_flight

    def playable_s(self, settings: EdgeParameters) -> float:
        """Return how long the queue lasts without stale actions [s]; any thread."""
        return self._merger.playable_s(self._clock(), settings)

    def clear_queue(self, *, ends_episode: bool = True) -> None:
        """Clear the queue; chunks requested before are refused. Any thread."""
        self._merger.clear(ends_episode=ends_episode)

    def next_session_epoch(self) -> int:
        """Return the epoch of the next session to request."""
        return self._tracker.next_session_epoch()

    def begin_session(self, server: str, agreement: SessionAgreement) -> None:
        """Start the session requested last; replies of earlier sessions are discarded."""
        self.status.server = server
        self._end_request('session_lost')
        self._tracker.begin_session(agreement.schema_version)
        self._encoder.begin_session(agreement)
        self._merger.begin_session(server, agreement)
        self.reply_stats.begin_session()

    def end_session(self) -> None:
        """Record that there is no session; a reply to the request in flight still counts."""
        self.status.server = ''

    def begin_episode(self, episode: EpisodeRequest, *, notify_server: bool) -> None:
        """Clear the queue and start an episode."""
        self._end_request('episode_started')
        # what was requested since the requester has ended the episode before
        self._merger.clear(ends_episode=False)
        self._encoder.begin_episode()
        self.set_episode(episode)
        if notify_server:
            epoch, number = self._tracker.session_epoch, self._tracker.episode
            self._transport.reset_episode(epoch, number, self.status.episode_id)

    def set_episode(self, episode: EpisodeRequest) -> None:
        """Set task and id of the next episode."""
        self._tracker.begin_episode(episode.episode_id)
        self.status.task, self.status.episode_id = episode.task, self._tracker.episode_id

    def mark_overdue(self) -> None:
        """Mark the request overdue; a reply before the next request still counts."""
        self.status.count_dropped('request_timeout')
        self._tracker.mark_overdue()

    def close(self) -> None:
        """End the request in flight at shutdown."""
        self._end_request('stopped')

    def _end_request(self, reason: str) -> None:
        """End the request in flight, if any, without a reply."""
        status = ABANDONED
        if self._tracker.is_overdue:
            reason, status = 'request_timeout', TIMED_OUT
        request = self._tracker.release()
        if request:
            self._listener.ended(RequestEnd(request, self._clock(), status, reason))

    # a request

    def send_request(self, settings: EdgeParameters) -> PendingRequest | None:
        """Send an observation; return None if no inputs are ready."""
        try:
            steps = self._encoder.take_steps(self._clock())
            # before the frames are encoded, which takes time
            marked_ns, prefix = self._clock(), self._merger.prefix(settings)
            pending = self._send(settings, steps, prefix, marked_ns)
        except InputsNotReady as error:
            self.status.waiting_for = str(error)
            return None
        except (Malformed, Unencodable) as error:
            reason = error.reason if isinstance(error, Malformed) else 'unencodable'
            self.status.count_dropped(reason)
            # it may already have a seq; an overdue one may still be replied to
            if not self._tracker.is_overdue:
                self._end_request(reason)
            self.status.waiting_for = str(error)
            return None
        self.status.waiting_for = ''
        return pending

    def _send(
        self,
        settings: EdgeParameters,
        steps: tuple[HistoryStep, ...],
        prefix: Leftover,
        marked_ns: int,
    ) -> PendingRequest:
        inputs = self._encoder.read(steps)
        if self._tracker.is_overdue:
            self._end_request('request_timeout')
        now_ns = self._clock()
        pending = self._tracker.track(
            sent_ns=now_ns,
            marked_ns=marked_ns,
            # actions are as old as the current observation; the history is older on purpose
            captured_ns=steps[-1].snapshot.captured_ns,
            mark=prefix.mark,
            continues_prefix=self._merger.continues_prefix(settings, prefix),
        )
        observation = self._encoder.observation(
            pending,
            inputs,
            prefix,
            task=self.status.task,
            delay_steps=self._merger.delay_steps(now_ns),
            playable_s=self._merger.playable_s(now_ns, settings),
        )
        raw = wire_observation.encode(observation)
        self.unreadable = ''
        self._transport.send(raw)
        self.status.requests_sent += 1
        # while the server processes the request
        self._listener.sent(observation, server=self.status.server, request_bytes=len(raw))
        return pending

    # its reply

    def on_reply(self, raw: bytes, arrived_ns: int, settings: EdgeParameters) -> ProcessedReply:
        """Process an arrived reply, or drop it with a reason."""
        try:
            chunk = wire_chunk.decode(raw)
            if chunk.client_id != self._encoder.client_id:
                raise ReplyDropped('other_client')
            pending = self._tracker.match_reply(chunk.header)
        except (Malformed, ReplyDropped) as error:
            if isinstance(error, Malformed):
                self.unreadable = (
                    f'a reply cannot be read ({error}); robot and server need the same version of '
                    'lerobot_serve'
                )
            self.status.count_dropped(error.reason)
            return ProcessedReply(
                ReplyResult.DROPPED, is_of_session=error.reason in TOO_LATE_REASONS
            )
        processed, status, reason = self._merge(chunk, pending, arrived_ns, settings)
        self._listener.ended(RequestEnd(pending, arrived_ns, status, reason, chunk, len(raw)))
        return processed

    def _merge(
        self, chunk: Chunk, pending: PendingRequest, arrived_ns: int, settings: EdgeParameters
    ) -> tuple[ProcessedReply, str, str]:
        """
        Merge the matched reply, or count why it cannot be merged. Return the result for the
        requester, and the status and reason of the request's end.
        """
        try:
            is_merged = self._merger.merge(chunk, pending, arrived_ns, settings)
        except (Malformed, ReplyDropped) as error:
            self.status.count_dropped(error.reason)
            text = chunk.status_text or str(error)
            failure = f'server error: {text}' if chunk.status else text
            self.status.last_failure = failure
            is_over = chunk.status in SESSION_ENDING_STATUSES or error.reason == FOREIGN_POLICY
            result = ReplyResult.SESSION_ENDED if is_over else ReplyResult.NO_ACTIONS
            wait_s = wire_chunk.retry_after_s(chunk) if chunk.status == Status.QUOTA else 0.0
            return ProcessedReply(result, failure, wait_s), error.reason, text
        if not is_merged:
            return ProcessedReply(ReplyResult.DROPPED), ABANDONED, 'rejected_chunk'
        self._tracker.awaits_start = False
        round_trip_s = (arrived_ns - pending.sent_ns) / 1e9
        self.status.on_chunk_merged(chunk, round_trip_ms=1e3 * round_trip_s)
        self.reply_stats.add(
            chunk.slot,
            chunk.superseded,
            round_trip_s=round_trip_s,
            network_s=self.status.network_ms / 1e3,
        )
        return ProcessedReply(ReplyResult.MERGED), OK, ''
