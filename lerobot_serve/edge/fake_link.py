"""
A server without ROS, for trying a requester: refuses, resets and answers as it is told.

The thread of the requester calls the methods of Link; the test calls the others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
import queue

import numpy as np

from lerobot_serve.edge.history import Moment
from lerobot_serve.edge.link import Agreement
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.content import Image
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Flag, SCHEMA_VERSION

WAIT_S = 10.0


class FakeLink:
    """A Link that remembers what it was asked; `open_errors` are raised first, in order."""

    def __init__(self, *open_errors: Exception) -> None:
        self.open_errors = deque(open_errors)
        self.observe_errors: deque[Exception] = deque()
        self.images: tuple[Image, ...] = ()
        self.agreement = Agreement(SCHEMA_VERSION)
        self.epochs: list[int] = []
        self.resets: list[tuple[int, int, str]] = []
        self._requests: queue.SimpleQueue[Observation] = queue.SimpleQueue()

    def open_session(self, epoch: int) -> Agreement:
        self.epochs.append(epoch)
        if self.open_errors:
            raise self.open_errors.popleft()
        return self.agreement

    def reset_episode(self, epoch: int, episode: int, episode_id: str) -> None:
        self.resets.append((epoch, episode, episode_id))

    def observe(self, moments: tuple[Moment, ...]) -> tuple[np.ndarray, tuple[Image, ...]]:
        """Return the inputs `state` as they were deposited, and `images` at each moment."""
        if self.observe_errors:
            raise self.observe_errors.popleft()
        states = np.stack([moment.snapshot.values['state'] for moment in moments])
        images = [replace(i, steps_back=m.steps_back) for m in moments for i in self.images]
        return states, tuple(images)

    def send(self, raw: bytes) -> None:
        self._requests.put(wire_observation.decode(raw))

    def request(self, timeout_s: float = WAIT_S) -> Observation:
        """Wait for the next request. Raises queue.Empty."""
        return self._requests.get(timeout=timeout_s)

    @property
    def requests_waiting(self) -> int:
        return self._requests.qsize()


def answer(
    request: Observation, robot: np.ndarray, *, header: Header | None = None, **changes: object
) -> bytes:
    """Return the bytes of a chunk that answers `request`, with any field of Chunk changed."""
    content = {'client_id': request.client_id, 'episode_id': request.episode_id, **changes}
    chunk = Chunk(header or request.header.answer(Flag.NONE), robot=robot, **content)
    return wire_chunk.encode(chunk)
