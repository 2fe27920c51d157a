"""What the requester needs of the outside, and what it tells about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lerobot_serve.edge.inputs.history import HistoryStep
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.message_parts import Image


@dataclass(frozen=True, slots=True)
class SessionAgreement:
    """
    What a server asks of the requests of a session, and what it gives.

    chunk_size  the most actions of a chunk; of several policies the smallest of these, 0 unknown
    policy      fingerprint of what answers; a router joins those of its slots with |, '' unknown
    """

    schema_version: int
    observation_steps: int = 1
    observation_stride_steps: int = 1
    chunk_size: int = 0
    supports_rtc: bool = False
    policy: str = ''


class Transport(Protocol):
    """What the requester needs of the outside; the node implements it."""

    def is_there(self, server: str) -> bool:
        """Return whether somebody offers this server's services now."""

    def open_session(self, server: str, epoch: int) -> SessionAgreement:
        """Return what the server asks of requests. Raises Refused or Unreachable."""

    def close_session(self) -> None:
        """Tell the present server that it is left; what it answers changes nothing."""

    def reset_episode(self, epoch: int, episode: int, episode_id: str) -> None:
        """Tell the present server; what it answers changes nothing for the robot."""

    def observe(self, moments: tuple[HistoryStep, ...]) -> tuple[np.ndarray, tuple[Image, ...]]:
        """
        Return the states, a row a moment, and the encoded images. Raises Malformed or Unencodable.
        """

    def send(self, raw: bytes) -> None:
        """Publish a request to the present server."""

    def probe(self, on_answer: Callable[[], None]) -> None:
        """
        Ask the present server for a sign of life and wait for nothing; `on_answer` is called by
        another thread when it comes.
        """


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """
    When to ask, when to give up, and how a chunk is joined to what is left of the last.

    append  a chunk that does not continue what is left comes behind it, instead of in its place
    """

    step_s: float
    buffer_time_s: float
    request_timeout_s: float
    degraded_after_s: float = 1.0
    max_offline_s: float = 60.0
    max_action_age_s: float = 3.0
    append: bool = True
    rtc: bool = False
    execution_horizon: int = 0
    # requests without an answer, one after the other, that end a session
    max_consecutive_timeouts: int = 2


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """What the robot shall do, and how that is called; an empty name is chosen here."""

    task: str = ''
    episode_id: str = ''


@dataclass
class SessionStatus:
    """What the requester tells about itself; replaced field by field, read by the status timer."""

    waiting_for: str = ''
    failed: str = ''
    server: str = ''
    task: str = ''
    episode_id: str = ''
    slot: str = ''
    policy: str = ''
    round_trip_ms: float = 0.0
    network_ms: float = 0.0
    requests_sent: int = 0
    chunks_accepted: int = 0

    def accepted(self, chunk: Chunk, *, round_trip_ms: float) -> None:
        """Note a chunk that will be played."""
        self.failed = ''
        self.slot, self.policy = chunk.slot, chunk.policy
        self.round_trip_ms = round_trip_ms
        server_ms = chunk.queue_wait_ms + chunk.processing_ms + chunk.inference_ms
        self.network_ms = max(0.0, round_trip_ms - server_ms)
        self.chunks_accepted += 1
