# SPDX-License-Identifier: Apache-2.0
"""
Numbers the sessions, episodes and requests of one client, and matches replies to them. Pure.

A reply matches if it has the epoch, the episode and the seq of the request that was sent last. The
epoch of a session counts once the session is open: until then the reply to a request of the one
before still matches.
"""

from __future__ import annotations

import secrets

from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.names import default_episode_id
from lerobot_serve.contract.records import ResetEpisodeRequest
from lerobot_serve.contract.schema import Flag, MsgType
from lerobot_serve.contract.services.session import EPOCHS

# why a reply does not match: of another session, another episode, another request
STALE_EPOCH, STALE_EPISODE, LATE_CHUNK = 'stale_epoch', 'stale_episode', 'late_chunk'


class SessionNumbers:
    """
    See the module. Its owner guards it.

    requested_epoch  of the session that was requested last, which may not be open yet
    episode_id       of the present episode
    awaits_start     no reply has shown yet that the server knows the start of the episode
    """

    def __init__(self, client_id: str, session_epoch: int | None = None) -> None:
        self.client_id = client_id
        # a client that restarts must not continue the epochs of its predecessor
        self.session_epoch = secrets.randbits(32) if session_epoch is None else session_epoch
        self.requested_epoch = self.session_epoch
        self._schema_version = 0
        self.episode = self.seq = self._episodes = 0
        self.episode_id, self.awaits_start = '', True

    def next_session_epoch(self) -> int:
        """Return the epoch of the next session to request."""
        self.requested_epoch = (self.requested_epoch + 1) % EPOCHS
        return self.requested_epoch

    def begin_session(self, schema_version: int) -> None:
        """Start the session that was requested last; the episode continues in it."""
        self.session_epoch, self._schema_version = self.requested_epoch, schema_version
        self.episode = self.seq = 0

    def begin_episode(self, episode_id: str = '') -> None:
        """Begin the next episode, with an id that is unique in the fleet unless one is given."""
        self.episode += 1
        self._episodes += 1
        self.awaits_start = True
        self.episode_id = episode_id or default_episode_id(
            self.client_id, self.session_epoch, self._episodes
        )

    def reset_request(self) -> ResetEpisodeRequest:
        """Return the announcement of the present episode."""
        return ResetEpisodeRequest(
            self.client_id, self.session_epoch, self.episode, self.episode_id
        )

    def next_header(self, now_ns: int) -> Header:
        """Return the header of the next request."""
        self.seq += 1
        return Header(
            seq=self.seq,
            client_mono_ns=now_ns,
            session_epoch=self.session_epoch,
            episode=self.episode,
            schema_version=self._schema_version,
            msg_type=MsgType.OBSERVATION,
            flags=Flag.EPISODE_START if self.awaits_start else Flag.NONE,
        )

    def mismatch(self, reply: Header) -> str:
        """Return why a reply is not that to the request sent last; empty if it is."""
        if reply.session_epoch != self.session_epoch:
            return STALE_EPOCH
        if reply.episode != self.episode:
            return STALE_EPISODE
        return '' if reply.seq == self.seq else LATE_CHUNK
