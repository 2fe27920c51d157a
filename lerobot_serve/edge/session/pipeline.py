# SPDX-License-Identifier: Apache-2.0
"""
Sends one request at a time within a session and processes its reply. The request thread.

Down: inputs, prefix and execution report become a request, which the session machine numbers and
the transport sends. Back: the machine matches a reply to the request, the merger joins its chunk
to the queue. The requester decides which server to use and when to request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import execution_report as wire_executed
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.records import OpenSessionResponse
from lerobot_serve.contract.schema import Flag
from lerobot_serve.edge.inputs.latest import InputsNotReady
from lerobot_serve.edge.observability.listener import EdgeListener, ReplyStats
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.units import executed_for_policy
from lerobot_serve.edge.session.chunk_merging import ChunkMerger
from lerobot_serve.edge.session.request import (
    ABANDONED,
    OK,
    PendingRequest,
    RequestEnd,
    RequestParts,
    RobotSession,
    TIMED_OUT,
)
from lerobot_serve.edge.session.transport.transport import Transport
from lerobot_serve.session.machine import ReplyDropped


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """Task and id of an episode; an empty id is generated."""

    task: str = ''
    episode_id: str = ''


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
    Sends requests and processes replies in the session of `machine`. Other threads read `status`
    and `reply_stats`; `listener` is notified of each request and its end.
    """

    def __init__(
        self,
        transport: Transport,
        machine: RobotSession,
        parts: RequestParts,
        merger: ChunkMerger,
        *,
        status: SessionStatus,
        clock: Callable[[], int],
        listener: EdgeListener,
    ) -> None:
        self._transport, self.machine = transport, machine
        self.parts, self.merger, self.status = parts, merger, status
        self._clock, self._listener = clock, listener
        self.reply_stats = ReplyStats()
        # why a message since the last request could not be read
        self.unreadable = ''

    # sessions and episodes

    def begin_session(self, server: str, epoch: int, agreement: OpenSessionResponse) -> None:
        """Use the session requested last; replies of earlier sessions are discarded."""
        self.status.server = server
        self._end_request('session_lost')
        self.machine.opened(epoch, agreement.schema_version)
        self.parts.history.require(agreement.observation_steps, agreement.observation_stride_steps)
        self.parts.observations.begin_session(agreement.cameras)
        self.merger.begin_session(server, agreement)
        self.reply_stats.begin_session()

    def end_session(self, reason: str) -> None:
        """Record that there is no session; a reply to the request in flight still counts."""
        self.machine.lost(reason)
        self.status.server = ''

    def begin_episode(self, episode: EpisodeRequest) -> None:
        """Clear the queue and start an episode, of which the server is notified."""
        self._end_request('episode_started')
        # what was requested since the requester has ended the episode before
        self.merger.queue.clear(ends_episode=False)
        self.parts.history.restart()
        self.set_episode(episode)
        if self.machine.is_open:
            epoch, number = self.machine.session_epoch, self.machine.episode
            self._transport.reset_episode(epoch, number, self.status.episode_id)

    def set_episode(self, episode: EpisodeRequest) -> None:
        """Set task and id of the next episode."""
        self.machine.begin_episode(episode.episode_id)
        self.status.task, self.status.episode_id = episode.task, self.machine.episode_id

    def mark_overdue(self) -> None:
        """Mark the request overdue; a reply before the next request still counts."""
        self.status.count_dropped('request_timeout')
        self.machine.overdue()

    def close(self) -> None:
        """End the request in flight and the session at shutdown."""
        self._end_request('stopped')
        self.machine.end()

    def _end_request(self, reason: str) -> None:
        """End the request in flight, if any, without a reply."""
        status = ABANDONED
        if self.machine.is_overdue:
            reason, status = 'request_timeout', TIMED_OUT
        request = self.machine.release()
        if request:
            self._listener.ended(RequestEnd(request, self._clock(), status, reason))

    # a request

    def send_request(self, settings: EdgeParameters) -> PendingRequest | None:
        """Send an observation; return None if no inputs are ready."""
        try:
            pending = self._send(settings)
        except InputsNotReady as error:
            self.status.waiting_for = str(error)
            return None
        except (Malformed, Unencodable) as error:
            reason = error.reason if isinstance(error, Malformed) else 'unencodable'
            self.status.count_dropped(reason)
            # it may already have a seq; an overdue one may still be replied to
            if not self.machine.is_overdue:
                self._end_request(reason)
            self.status.waiting_for = str(error)
            return None
        self.status.waiting_for = ''
        return pending

    def _send(self, settings: EdgeParameters) -> PendingRequest:
        steps = self.parts.history.take(self._clock())
        # before the frames are encoded, which takes time
        marked_ns, prefix = self._clock(), self.merger.prefix(settings)
        state, images = self.parts.observations.read(steps)
        if self.machine.is_overdue:
            self._end_request('request_timeout')
        pending = PendingRequest(
            self.machine.next_header(self._clock()),
            marked_ns,
            # actions are as old as the current observation; the history is older on purpose
            captured_ns=steps[-1].snapshot.captured_ns,
            mark=prefix.mark,
            episode_id=self.machine.episode_id,
            continues_prefix=self.merger.continues_prefix(settings, prefix),
        )
        self.machine.sent(pending)
        executed = executed_for_policy(self.parts.executed(), self.merger.units)
        observation = Observation(
            pending.header,
            client_id=self.machine.client_id,
            episode_id=pending.episode_id,
            state=state,
            images=images,
            task=self.status.task,
            inference_delay_steps=min(self.merger.delay_steps(pending.sent_ns), len(prefix.robot)),
            queue_remaining_s=self.merger.playable_s(pending.sent_ns, settings),
            prefix_policy=prefix.policy,
            prefix_model=prefix.model,
            prefix_robot=self.merger.units.to_policy(prefix.robot).astype(np.float32, copy=False),
            # lost with the request; it is not sent again
            extensions=(wire_executed.encode(executed),),
        )
        raw = wire_observation.encode(observation)
        self.unreadable = ''
        self._transport.send(raw)
        self.status.requests_sent += 1
        # while the server processes the request
        self._listener.sent(observation, server=self.status.server, request_bytes=len(raw))
        return pending

    # its reply

    def on_reply(self, raw: bytes, arrived_ns: int, settings: EdgeParameters) -> RequestEnd | None:
        """Process an arrived reply; return the request that it ends, None for a dropped one."""
        try:
            chunk = wire_chunk.decode(raw)
            if chunk.client_id != self.machine.client_id:
                raise ReplyDropped('other_client')
            pending = self.machine.take(chunk.header)
        except (Malformed, ReplyDropped) as error:
            if isinstance(error, Malformed):
                self.unreadable = (
                    f'a reply cannot be read ({error}); robot and server need the same version of '
                    'lerobot_serve'
                )
            self.status.count_dropped(error.reason)
            return None
        status, reason = self._merge(chunk, pending, arrived_ns, settings)
        end = RequestEnd(pending, arrived_ns, status, reason, chunk, len(raw))
        self._listener.ended(end)
        return end

    def _merge(
        self, chunk: Chunk, pending: PendingRequest, arrived_ns: int, settings: EdgeParameters
    ) -> tuple[str, str]:
        """
        Merge the matched reply, or count why it cannot be merged. Return the status and reason of
        the request's end.
        """
        try:
            is_merged = self.merger.merge(chunk, pending, arrived_ns, settings)
        except (Malformed, ReplyDropped) as error:
            self.status.count_dropped(error.reason)
            text = chunk.status_text or str(error)
            self.status.last_failure = f'server error: {text}' if chunk.status else text
            return error.reason, text
        if not is_merged:
            return ABANDONED, 'rejected_chunk'
        self.machine.awaits_start = False
        round_trip_s = (arrived_ns - pending.sent_ns) / 1e9
        self.status.on_chunk_merged(chunk, round_trip_ms=1e3 * round_trip_s)
        self.reply_stats.add(
            chunk.slot,
            chunk.superseded,
            round_trip_s=round_trip_s,
            network_s=self.status.network_ms / 1e3,
        )
        return OK, ''
