"""What the requester needs of the outside, and what it tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lerobot_serve.edge.history import Moment
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.content import Image


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a server asks of the requests of a session."""

    schema_version: int
    observation_steps: int = 1
    observation_stride_steps: int = 1


class Link(Protocol):
    """What the requester needs of the outside; the node implements it."""

    def open_session(self, epoch: int) -> Agreement:
        """Return what the server asks of requests. Raises Refused or Unreachable."""

    def reset_episode(self, epoch: int, episode: int, episode_id: str) -> None:
        """Tell the server; what it answers changes nothing for the robot."""

    def observe(self, moments: tuple[Moment, ...]) -> tuple[np.ndarray, tuple[Image, ...]]:
        """
        Return the states, a row a moment, and the encoded images. Raises Malformed or Unencodable.
        """

    def send(self, raw: bytes) -> None:
        """Publish a request."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When to ask and when to give up."""

    step_s: float
    buffer_time_s: float
    request_timeout_s: float
    backoff_s: float
    append: bool


@dataclass
class Progress:
    """What the requester tells about itself; replaced field by field, read by the status timer."""

    connected: bool = False
    ever_connected: bool = False
    refused: str = ''
    waiting_for: str = ''
    failed: str = ''
    late: bool = False
    episode_id: str = ''
    slot: str = ''
    policy: str = ''
    round_trip_ms: float = 0.0
    network_ms: float = 0.0
    requests_sent: int = 0
    chunks_accepted: int = 0

    def accepted(self, chunk: Chunk, *, round_trip_ms: float) -> None:
        """Note a chunk that will be played."""
        self.late, self.failed = False, ''
        self.slot, self.policy = chunk.slot, chunk.policy
        self.round_trip_ms = round_trip_ms
        server_ms = chunk.queue_wait_ms + chunk.processing_ms + chunk.inference_ms
        self.network_ms = max(0.0, round_trip_ms - server_ms)
        self.chunks_accepted += 1
