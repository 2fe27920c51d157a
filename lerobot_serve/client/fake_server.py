# SPDX-License-Identifier: Apache-2.0
"""
A server in this process, for tests of programs that use the client. No Zenoh, no threads: it
answers in the thread that sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.client.connection import Connection
from lerobot_serve.client.results import policy_info, PolicyInfo
from lerobot_serve.client.settings import client_settings
from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import (
    CameraSpec,
    GetStatusResponse,
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
    ResetEpisodeResponse,
    ServerStatus,
)
from lerobot_serve.contract.schema import Codec, Flag
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.links.link import LinkCallbacks, Presence
from lerobot_serve.local.signal import Signal

NAMES = ('shoulder.pos', 'elbow.pos')
CAMERAS = (CameraSpec('observation.images.front', 4, 6),)
POLICY = 'fake@0123456789abcdef'
CHUNK_STEPS, FPS = 3, 30.0
SERVED: dict[str, Any] = {
    'state_names': NAMES,
    'action_names': NAMES,
    'cameras': CAMERAS,
    'chunk_size': CHUNK_STEPS,
    'trained_fps': FPS,
}


class FakeServer:
    """
    Answers each observation with `policy(state)`, unless `holds` is set: then requests wait in
    `held` for `answer`. `refusals` are raised by the next calls of OpenSession, in order.
    """

    def __init__(
        self,
        policy: Callable[[Float32Array], Float32Array] = lambda state: np.tile(state, (3, 1)),
        *,
        observation_steps: int = 1,
        stride_steps: int = 1,
    ) -> None:
        self.policy, self.fingerprint = policy, POLICY
        self.observation_steps, self.stride_steps = observation_steps, stride_steps
        self.is_there = True
        self.holds = False
        self.held: deque[Observation] = deque()
        self.observations: list[Observation] = []
        self.refusals: deque[Exception] = deque()
        self.opened: list[OpenSessionRequest] = []
        self.closed: list[OpenSessionRequest] = []
        self.resets: list[ResetEpisodeRequest] = []
        self.links: dict[str, FakeServerLink] = {}

    def connection(self, client_id: str = 'tester', timeout_s: float = 5.0) -> Connection:
        """Return a connection for PolicyClient or AsyncPolicyClient."""
        settings = client_settings('policy_server', client_id=client_id, timeout_s=timeout_s)
        return Connection(settings, self._link, lambda: None)

    def _link(self, client_id: str, callbacks: LinkCallbacks) -> FakeServerLink:
        self.links[client_id] = FakeServerLink(self, callbacks)
        return self.links[client_id]

    def go(self) -> None:
        """End, as a server that is killed: sessions are lost."""
        self.is_there = False
        self.held.clear()
        self._notify()

    def come_back(self) -> None:
        self.is_there = True
        self._notify()

    def _notify(self) -> None:
        for link in tuple(self.links.values()):
            link.callbacks.on_presence(Presence.THERE if self.is_there else Presence.GONE)

    def receive(self, observation: Observation) -> None:
        self.observations.append(observation)
        if self.holds:
            self.held.append(observation)
        else:
            self.answer(observation)

    def answer(self, observation: Observation | None = None, **changes: object) -> None:
        """Reply to an observation, to the oldest held one by default, with changes of Chunk."""
        asked = observation or self.held.popleft()
        actions = np.asarray(self.policy(asked.state[-1]), np.float32)
        chunk = Chunk(
            asked.header.for_reply(Flag.NONE),
            asked.client_id,
            asked.episode_id,
            robot=actions,
            policy=self.fingerprint,
            queue_wait_ms=1.0,
            inference_ms=2.0,
        )
        self.deliver(asked.client_id, wire_chunk.encode(replace(chunk, **changes)))

    def deliver(self, client_id: str, raw: bytes) -> None:
        """Send bytes to a client."""
        self.links[client_id].callbacks.on_chunk(raw)


class FakeServerLink:
    """The ServerLink to a FakeServer."""

    def __init__(self, server: FakeServer, callbacks: LinkCallbacks) -> None:
        self._server, self.callbacks, self.signal = server, callbacks, Signal
        self.is_closed = False

    def is_available(self) -> bool:
        return self._server.is_there

    def absence(self) -> str:
        return 'the fake server is away; call come_back()'

    def reply_topic(self, session_epoch: int) -> str:
        return f'fake/{session_epoch:08x}'

    def describe(self, _: float) -> PolicyInfo:
        self._check_there()
        server = self._server
        reply = GetStatusResponse(
            status=ServerStatus(policy=server.fingerprint, policy_type='fake', text='serving'),
            **SERVED,
            observation_steps=server.observation_steps,
            observation_stride_steps=server.stride_steps,
        )
        return policy_info(reply)

    def open(self, request: OpenSessionRequest, _: float) -> OpenSessionResponse:
        self._check_there()
        if self._server.refusals:
            raise self._server.refusals.popleft()
        self._server.opened.append(request)
        server = self._server
        return OpenSessionResponse(
            accepted=True,
            schema_version=SCHEMA_VERSION,
            session_epoch=request.session_epoch,
            policy=server.fingerprint,
            policy_type='fake',
            **SERVED,
            observation_steps=server.observation_steps,
            observation_stride_steps=server.stride_steps,
            codec=Codec(request.codec),
        )

    def close_session(self, request: OpenSessionRequest, _: float) -> None:
        self._check_there()
        self._server.closed.append(request)

    def reset(self, request: ResetEpisodeRequest, _: float) -> ResetEpisodeResponse:
        self._check_there()
        self._server.resets.append(request)
        return ResetEpisodeResponse(True, '')

    def wait_until_matched(self, _: float) -> bool:
        return True

    def encode(self, observation: Observation) -> bytes:
        return wire_observation.encode(observation)

    def send(self, raw: Outgoing) -> None:
        self._check_there()
        self._server.receive(wire_observation.decode(bytes(raw)))

    def close(self) -> None:
        self.is_closed = True

    def _check_there(self) -> None:
        if not self._server.is_there:
            raise ServerUnreachable('the fake server is away')
