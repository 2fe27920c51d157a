# SPDX-License-Identifier: Apache-2.0
"""Numbers of one caller: its sessions, episodes and requests. Pure."""

from __future__ import annotations

from dataclasses import dataclass
import secrets

from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.names import default_episode_id
from lerobot_serve.contract.schema import Flag, MsgType
from lerobot_serve.gateway.callers.predictions import PredictionRequest


@dataclass(slots=True)
class Numbering:
    """The event loop owns it."""

    client_id: str
    session_epoch: int = 0
    schema_version: int = 0
    episode: int = 0
    episode_id: str = ''
    sequence: int = 0
    # the router has not received the start of the episode yet
    is_episode_start: bool = True
    _episodes: int = 0

    def __post_init__(self) -> None:
        # a restarted gateway must not continue the epochs of its predecessor
        self.session_epoch = self.session_epoch or secrets.randbits(32)

    def next_epoch(self) -> int:
        """Return the epoch of a session to open."""
        self.session_epoch = (self.session_epoch + 1) % 2**32
        return self.session_epoch

    def begin_session(self, schema_version: int) -> None:
        """Count from the beginning; the episode continues in the new session."""
        self.schema_version, self.episode, self.sequence = schema_version, 0, 0

    def begin_request(self, request: PredictionRequest) -> bool:
        """Count a request; return whether an episode begins that must be announced."""
        has_begun = self._begin_episode(request)
        self.sequence += 1
        # the first request of a session announces its episode itself
        return has_begun and self.sequence > 1

    def _begin_episode(self, request: PredictionRequest) -> bool:
        is_other = request.episode_id not in ('', self.episode_id)
        if self.episode_id and not (request.episode_start or is_other):
            return False
        self._episodes += 1
        self.episode += 1 if self.sequence else 0
        self.episode_id = request.episode_id or default_episode_id(
            self.client_id, self.session_epoch, self._episodes
        )
        self.is_episode_start = True
        return True

    def header(self, now_ns: int) -> Header:
        """Return the header of the counted request."""
        return Header(
            seq=self.sequence,
            client_mono_ns=now_ns,
            session_epoch=self.session_epoch,
            episode=self.episode,
            schema_version=self.schema_version,
            msg_type=MsgType.OBSERVATION,
            flags=Flag.EPISODE_START if self.is_episode_start else Flag.NONE,
        )

    def is_answered_by(self, header: Header) -> bool:
        """Return whether a reply is for the newest request."""
        mine = (self.session_epoch, self.episode, self.sequence)
        return mine == (header.session_epoch, header.episode, header.seq)
