# SPDX-License-Identifier: Apache-2.0
"""
Scripted servers and inputs without ROS, for tests of the requester.

The requester thread calls the methods of Transport and ObservationReader; the test calls the
others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import queue
from typing import Any

from msgspec.structs import replace
import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import CameraSpec, OpenSessionResponse
from lerobot_serve.contract.schema import Flag
from lerobot_serve.edge.inputs.latest import HistoryStep
from lerobot_serve.edge.session.request import RobotInputs

WAIT_S = 10.0


def agreed(**terms: Any) -> OpenSessionResponse:
    """Return what is agreed with a server that takes one observation in each request."""
    one = {'observation_steps': 1, 'observation_stride_steps': 1}
    return OpenSessionResponse(accepted=True, schema_version=SCHEMA_VERSION, **one | terms)


class FakeTransport:
    """
    A Transport that records its calls. `open_errors` are raised first, in order; then a server
    opens sessions unless `refusals` has an error for it. `on_request` receives each request; by
    default `request` returns them.
    """

    def __init__(self, *open_errors: Exception) -> None:
        self.open_errors = deque(open_errors)
        self.unavailable: set[str] = set()
        # servers that do not respond to a probe
        self.unresponsive: set[str] = set()
        self.probed: list[str] = []
        self.refusals: dict[str, Exception] = {}
        self.agreement = agreed()
        # server and epoch of each attempt to open a session
        self.opened: list[tuple[str, int]] = []
        self.left: list[str] = []
        self.resets: list[tuple[int, int, str]] = []
        self._requests: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self.on_request: Callable[[Observation], None] = self._requests.put

    @property
    def epochs(self) -> list[int]:
        return [epoch for _, epoch in self.opened]

    @property
    def servers(self) -> list[str]:
        return [server for server, _ in self.opened]

    def is_available(self, server: str) -> bool:
        return server not in self.unavailable

    def open_session(self, server: str, epoch: int) -> OpenSessionResponse:
        self.opened.append((server, epoch))
        if self.open_errors:
            raise self.open_errors.popleft()
        if server in self.refusals:
            raise self.refusals[server]
        return self.agreement

    def close_session(self) -> None:
        self.left.append(self.servers[-1])

    def reset_episode(self, epoch: int, episode: int, episode_id: str) -> None:
        self.resets.append((epoch, episode, episode_id))

    def send(self, raw: Outgoing) -> None:
        self.on_request(wire_observation.decode(bytes(raw)))

    def probe(self, on_reply: Callable[[], None]) -> None:
        self.probed.append(self.servers[-1])
        if self.servers[-1] not in self.unresponsive:
            on_reply()

    def request(self, timeout_s: float = WAIT_S) -> Observation:
        """Wait for the next request. Raises queue.Empty."""
        return self._requests.get(timeout=timeout_s)

    @property
    def requests_waiting(self) -> int:
        return self._requests.qsize()


class FakeObservations:
    """
    Reads the deposited inputs `state`, and gives `images` for each history step. `errors` are
    raised first, in order.
    """

    def __init__(self) -> None:
        self.errors: deque[Exception] = deque()
        self.images: tuple[Image, ...] = ()

    def begin_session(self, cameras: tuple[CameraSpec, ...]) -> None:
        pass

    def read(self, steps: tuple[HistoryStep, ...]) -> RobotInputs:
        if self.errors:
            raise self.errors.popleft()
        states = np.stack([step.snapshot.values['state'] for step in steps])
        images = [replace(i, steps_back=s.steps_back) for s in steps for i in self.images]
        return states, tuple(images)


def reply_bytes(
    request: Observation, robot: Float32Array, *, header: Header | None = None, **changes: Any
) -> bytes:
    """Return the encoded reply to `request`, with `changes` to fields of Chunk."""
    content = {'client_id': request.client_id, 'episode_id': request.episode_id, **changes}
    chunk = Chunk(header or request.header.for_reply(Flag.NONE), robot=robot, **content)
    return wire_chunk.encode(chunk)
