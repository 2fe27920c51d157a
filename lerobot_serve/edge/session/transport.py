# SPDX-License-Identifier: Apache-2.0
"""The transport interface of the requester, and its settings and status."""

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
    The terms of a session as the server stated them.

    chunk_size  maximum actions in a chunk; of several policies the smallest, 0: unknown
    policy      fingerprint; a router joins those of its slots with |, '': unknown
    """

    schema_version: int
    observation_steps: int = 1
    observation_stride_steps: int = 1
    chunk_size: int = 0
    supports_rtc: bool = False
    policy: str = ''


class Transport(Protocol):
    """Connection to the servers and the robot's inputs; PolicyServerTransport implements it."""

    def is_there(self, server: str) -> bool:
        """Return whether the services of this server are available."""

    def open_session(self, server: str, epoch: int) -> SessionAgreement:
        """Open a session. Raises SessionRefused or ServerUnreachable."""

    def close_session(self) -> None:
        """Close the session with the current server; its reply is ignored."""

    def reset_episode(self, epoch: int, episode: int, episode_id: str) -> None:
        """Notify the current server of a new episode; its reply is only logged."""

    def observe(self, moments: tuple[HistoryStep, ...]) -> tuple[np.ndarray, tuple[Image, ...]]:
        """
        Return the states, one row per history step, and the encoded images. Raises Malformed or
        Unencodable.
        """

    def send(self, raw: bytes) -> None:
        """Publish a request to the current server."""

    def probe(self, on_answer: Callable[[], None]) -> None:
        """
        Probe the current server without waiting; another thread calls `on_answer` on its response.
        """


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """
    Timing of requests, and how a chunk is merged into the queue.

    append  a chunk that does not continue the queue is appended instead of replacing it
    """

    step_s: float
    request_threshold_s: float
    request_timeout_s: float
    degraded_after_s: float = 1.0
    max_offline_s: float = 60.0
    max_action_age_s: float = 3.0
    append: bool = True
    rtc: bool = False
    execution_horizon: int = 0
    # consecutive timeouts after which the session is closed
    max_consecutive_timeouts: int = 2


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """Task and id of an episode; an empty id is generated."""

    task: str = ''
    episode_id: str = ''


@dataclass
class SessionStatus:
    """Status of the requester; written field by field, read by the status timer."""

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
        """Record a merged chunk."""
        self.failed = ''
        self.slot, self.policy = chunk.slot, chunk.policy
        self.round_trip_ms = round_trip_ms
        server_ms = chunk.queue_wait_ms + chunk.processing_ms + chunk.inference_ms
        self.network_ms = max(0.0, round_trip_ms - server_ms)
        self.chunks_accepted += 1
